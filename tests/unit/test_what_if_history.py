"""What a what-if reads of stored history: the state before the stretch is the same from wherever it is folded."""

import pytest

from adapters.log.copied import CopiedStream
from adapters.log.history import Streams
from adapters.log.reader import Reader
from adapters.log.segments import FindState
from adapters.times import Moment
from domain.errors import HistoryGapError
from services.cli.what_if_history import read
from services.simulator.whatif.recorded import Recorded
from tests.support.audited import Lived, lived_on, stored
from tests.support.history import CLUSTER, SECRET


@pytest.fixture(scope="module")
def lived() -> Lived:
    return lived_on()


async def recorded(streams: Streams, find: FindState) -> Recorded:
    since = Moment(number=190)
    return await read(streams, Reader(CLUSTER, SECRET), CLUSTER, since, None, lambda _: None, find=find)


async def test_a_stretch_of_today_is_asked_about_though_the_bus_has_dropped_the_facts_of_the_generations_beginning(
    lived: Lived,
):
    whole = await recorded(lived.streams, stored({}))
    assert whole.version > 60
    facts = [message async for batch in lived.streams.events.read(after=100) for message in batch]
    aged = Streams(CopiedStream("LW_EVENTS", facts), lived.streams.control, lived.streams.ledger)
    young = await recorded(aged, stored(lived.states))
    assert (young.version, young.state, young.steps) == (whole.version, whole.state, whole.steps)
    with pytest.raises(HistoryGapError):
        await recorded(aged, stored({}))
