"""What a master checks before it decides: what its bus has dropped for its age is no doubt, and what no age explains is one."""

import msgspec
import pytest

from adapters.log.copied import CopiedStream
from adapters.log.history import Streams, last_commit, stored_commit
from adapters.log.scan import Ages, Scanned, scan
from domain.errors import HistoryGapError
from domain.ports import Bounds
from tests.support.audited import Lived, lived_on

DAY_NS = 86_400 * 10**9
AGES = Ages(events_ns=7 * DAY_NS, ledger_ns=14 * DAY_NS)


@pytest.fixture(scope="module")
def lived() -> Lived:
    return lived_on()


class Made(CopiedStream):
    """A stream that says when it was made."""

    created_ns = 0

    async def bounds(self) -> Bounds:
        return msgspec.structs.replace(await super().bounds(), created_ns=self.created_ns)


async def aged(lived: Lived, first: int) -> Streams:
    """Return the streams after the facts before `first` were dropped."""
    facts = Made("LW_EVENTS", [each async for batch in lived.streams.events.read(after=first - 1) for each in batch])
    facts.created_ns = lived.stamp_ns - 30 * DAY_NS
    return Streams(facts, lived.streams.control, lived.streams.ledger)


async def scanned(streams: Streams, now_ns: int) -> Scanned:
    first, head = await streams.ledger.get(1), await last_commit(streams.ledger)
    assert first is not None
    assert head is not None
    ages = msgspec.structs.replace(AGES, now_ns=now_ns)
    return await scan(streams, stored_commit(first), head, subject="lw.test.ledger", ages=ages)


@pytest.mark.parametrize("first", [64, 401, 700])
async def test_a_commit_over_no_fact_among_those_whose_facts_are_dropped_is_no_doubt(lived: Lived, first: int):
    """A master's claim folds no fact: where what comes after it is dropped, reading goes on behind that."""
    commits = [stored_commit(each) async for batch in lived.streams.ledger.read(after=0) for each in batch]
    assert any(each.lo == each.hi < first - 1 for each in commits)
    found = await scanned(await aged(lived, first), lived.stamp_ns + 8 * DAY_NS)
    assert found.commits == len(commits)
    assert found.unchecked == sum(each.lo < each.hi and each.lo + 1 < first for each in commits)


async def test_facts_that_are_too_young_to_be_dropped_are_a_doubt(lived: Lived):
    with pytest.raises(HistoryGapError, match="too young to be dropped for its age"):
        await scanned(await aged(lived, 401), lived.stamp_ns + 6 * DAY_NS)
