"""What an audit does not decide again is checked as far as it can be, and said: nothing is passed over in silence."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from adapters.clock import SystemClock
from adapters.keys import Credentials, Signer, new_nkey, save_credentials
from adapters.log.copied import CopiedStream
from adapters.log.history import Streams
from adapters.log.renewal import begin_generation
from adapters.log.report import Report
from adapters.log.scan import NO_AGES, Ages
from adapters.log.segments import BadRangeError, FindState
from adapters.log.verify import Part
from adapters.memory.stream import MemoryStream
from domain.events.commit import decode_commit, encode_commit
from domain.events.decision import SafeModeLeft
from domain.ids import Generation
from domain.ports import Bounds, StoredMessage
from services.cli.audit_feed import check_feed
from services.cli.audit_source import Opened, Source
from services.cli.audit_workers import verified
from tests.support.audited import Lived, checkpoint, lived_on, stored
from tests.support.history import CLUSTER, SECRET

SIGNER = Signer(new_nkey()[0])
LATE = 150
"""States of earlier versions are not kept, as in a bus that keeps the newest ones."""
DAY_NS = 86_400 * 10**9


@pytest.fixture(scope="module")
def lived() -> Lived:
    return lived_on()


@pytest.fixture
def late(lived: Lived) -> FindState:
    return stored({version: state for version, state in lived.states.items() if version >= LATE})


@pytest.fixture
def audited(tmp_path: Path) -> Callable[..., object]:
    key = tmp_path / "operator.json"
    secrets = Credentials(name="o", role="operator", cluster=CLUSTER, nkey_seed="", cluster_mac_secret=SECRET)
    save_credentials(key, secrets)
    source = Source(kind="stream", cluster=CLUSTER, key=str(key))

    async def audit(streams: Streams, find: FindState, asked: Part, ages: Ages = NO_AGES) -> Report:
        place = Opened(streams=streams, find=find)
        silent: Callable[[int, int], None] = lambda _, __: None  # noqa: E731
        return await verified(source, place, asked, workers=1, fold_max=1000, progress=silent, ages=ages)

    return audit


async def messages(stream: object) -> list[StoredMessage]:
    assert isinstance(stream, CopiedStream)
    return [message async for batch in stream.read(after=(await stream.bounds()).first - 1) for message in batch]


async def with_ledger(lived: Lived, change: Callable[[list[StoredMessage]], Sequence[StoredMessage]]) -> Streams:
    ledger = CopiedStream("LW_LEDGER", list(change(await messages(lived.streams.ledger))))
    return Streams(lived.streams.events, lived.streams.control, ledger)


async def without(lived: Lived, version: int) -> Streams:
    """Return the streams after a commit was deleted."""
    return await with_ledger(lived, lambda held: [each for each in held if each.seq != version])


async def aged(streams: Streams, first: int = 401) -> Streams:
    """Return the same streams after their facts before `first` were dropped."""
    facts = [each for each in await messages(streams.events) if each.seq >= first]
    return Streams(CopiedStream("LW_EVENTS", facts), streams.control, streams.ledger)


async def test_a_commit_that_is_gone_is_named_wherever_the_search_for_the_beginning_looks(
    lived: Lived, late: FindState, audited
):
    for version in (1, 2, 4, 8, 16, 31, 61, 121):  # where a bisection of 241 versions looks
        streams = await without(lived, version)
        report = await audited(streams, late, Part())
        assert not report.clean, version
        assert "LW_LEDGER: message" in report.differences[0].detail


@pytest.mark.parametrize("version", [60, 90, 105])
async def test_a_hole_among_commits_whose_facts_are_dropped_is_named(
    lived: Lived, late: FindState, audited, version: int
):
    streams = await without(lived, version)
    report = await audited(await aged(streams), late, Part())
    assert f"message {version}" in report.differences[0].detail


async def test_a_changed_commit_whose_facts_are_dropped_is_held_against_what_was_signed(
    lived: Lived, late: FindState, audited
):
    streams = await aged(lived.streams)
    assert (await audited(streams, late, Part(checkpoints=[await checkpoint(lived, SIGNER, 60)]))).clean
    other = await checkpoint(lived, SIGNER, 60, digest="ab" * 16)
    report = await audited(streams, late, Part(checkpoints=[other]))
    assert "a checkpoint in a book was signed for" in report.differences[0].detail


async def test_the_line_says_which_versions_were_not_decided_again(lived: Lived, late: FindState, audited):
    report = await audited(await aged(lived.streams), late, Part())
    assert report.clean
    assert report.line() == "audit verify: 86 commits, 0 differences, versions 1 to 155 not decided again"


async def test_a_range_whose_facts_are_dropped_between_its_state_and_its_first_version_begins_later(
    lived: Lived, audited
):
    """A state that is kept for longer than the facts after it is nowhere to begin."""
    message = await lived.streams.ledger.get(118)
    assert message is not None
    streams = await aged(lived.streams, decode_commit(message.body).hi + 1)
    report = await audited(streams, stored(lived.states), Part(first=116))
    assert report.differences == []
    assert report.left_out == "116 to 120"


class Young(CopiedStream):
    """A stream that says when it was made."""

    async def bounds(self) -> Bounds:
        return msgspec.structs.replace(await super().bounds(), created_ns=100 * DAY_NS)


async def test_facts_that_are_gone_too_young_to_be_dropped_are_a_difference(lived: Lived, late: FindState, audited):
    facts = [each for each in await messages(lived.streams.events) if each.seq > 400]
    streams = Streams(Young("LW_EVENTS", facts), lived.streams.control, lived.streams.ledger)
    limit = Ages(events_ns=7 * DAY_NS, ledger_ns=14 * DAY_NS)
    young = await audited(streams, late, Part(), msgspec.structs.replace(limit, now_ns=103 * DAY_NS))
    assert "LW_EVENTS: message 1 must be there" in young.differences[0].detail
    assert young.differences[0].place == "events"
    behind = await audited(streams, late, Part(), msgspec.structs.replace(limit, now_ns=DAY_NS))
    assert "this machine's clock is behind" in behind.differences[0].detail
    assert "clock" not in young.differences[0].detail
    old = await audited(streams, late, Part(), msgspec.structs.replace(limit, now_ns=108 * DAY_NS))
    assert old.clean


@pytest.mark.parametrize("asked", [0, 150, 234, 999], ids=["no end", "an end before", "its end", "an end beyond"])
async def test_a_ledger_that_ends_before_what_was_signed_is_named_whatever_end_was_asked_for(
    lived: Lived, audited, asked: int
):
    streams = await with_ledger(lived, lambda held: held[:150])
    signed = await checkpoint(lived, SIGNER, 234)
    report = await audited(streams, stored({}), Part(last=asked, checkpoints=[signed]))
    assert "it ends at version 150" in report.differences[0].detail


async def test_versions_beyond_the_end_are_said_to_be_left_out(lived: Lived, audited):
    report = await audited(lived.streams, stored({}), Part(last=300))
    assert report.clean
    assert report.left_out == "242 to 300"


async def renewed(lived: Lived, upto: int) -> Streams:
    """Return the streams after an operator has begun a new generation after commit `upto`."""
    ledger = MemoryStream("LW_LEDGER", SystemClock())
    for message in (await messages(lived.streams.ledger))[:upto]:
        await ledger.publish(message.subject, message.body)
    streams = Streams(lived.streams.events, lived.streams.control, ledger)
    await begin_generation(streams, Generation("0002abcd"), "disk was full", cluster=CLUSTER, signer=SIGNER)
    copied = [message async for batch in ledger.read(after=0, until=upto + 1) for message in batch]
    return Streams(lived.streams.events, lived.streams.control, CopiedStream("LW_LEDGER", copied))


async def test_older_generations_are_said_to_be_passed_over(lived: Lived, audited):
    streams = await renewed(lived, 100)
    report = await audited(streams, stored({}), Part())
    assert report.clean
    assert "versions 1 to 100: of older generations" in report.unchecked[0]
    assert (await audited(streams, stored({}), Part(first=10))).left_out == "10 to 100"
    assert (await audited(streams, stored({}), Part(whole=True))).commits == 101


async def test_what_an_operators_word_has_given_up_is_no_difference_of_what_came_behind_it(lived: Lived, audited):
    """A stream that has lost its beginning stays young for days: else no audit in all that time would be clean."""
    ages = Ages(events_ns=7 * DAY_NS, ledger_ns=14 * DAY_NS, now_ns=103 * DAY_NS)
    facts = [each for each in await messages(lived.streams.events) if each.seq > 400]
    purged = Streams(Young("LW_EVENTS", facts), lived.streams.control, lived.streams.ledger)
    streams = await renewed(msgspec.structs.replace(lived, streams=purged), 100)
    assert (await audited(streams, stored({}), Part(), ages)).clean
    for asked in (Part(whole=True), Part(first=10)):
        told = (await audited(streams, stored({}), asked, ages)).differences
        assert "LW_EVENTS: message 1 must be there" in told[0].detail


async def test_the_word_of_an_operator_that_begins_a_generation_is_checked_like_any_commit(lived: Lived, audited):
    streams = await renewed(lived, 100)
    held = await messages(streams.ledger)
    assert (await audited(streams, stored({}), Part())).commits == 1
    made = decode_commit(held[-1].body)
    said = made.decisions[0]
    assert isinstance(said, SafeModeLeft)
    false = msgspec.structs.replace(made, decisions=(msgspec.structs.replace(said, reason="nothing happened"),))
    held[-1] = msgspec.structs.replace(held[-1], body=encode_commit(false))
    changed = Streams(streams.events, streams.control, CopiedStream("LW_LEDGER", held))
    report = await audited(changed, stored({}), Part())
    assert report.differences[0].version == 101


async def test_the_whole_of_what_no_longer_begins_at_its_beginning_is_refused(lived: Lived, late: FindState, audited):
    with pytest.raises(BadRangeError, match="--whole"):
        await audited(await aged(lived.streams), late, Part(whole=True))


async def test_a_ledger_whose_newest_message_is_no_commit_is_a_difference_and_no_crash(lived: Lived, audited):
    def change(held: list[StoredMessage]) -> list[StoredMessage]:
        return [*held[:-1], msgspec.structs.replace(held[-1], body=b"{")]

    report = await audited(await with_ledger(lived, change), stored({}), Part())
    assert "not a commit" in report.differences[0].detail


async def test_a_ledger_that_was_begun_anew_by_nobodys_word_is_held_against_what_was_signed_of_the_one_before(
    lived: Lived, audited
):
    """Whoever writes another history gives it another generation's name: no checkpoint of the true one is of its versions."""
    older = await checkpoint(lived, SIGNER, 234, generation="00000001")
    report = await audited(lived.streams, stored({}), Part(checkpoints=[older]))
    assert "begins without an operator's word" in report.differences[0].detail


async def test_a_feed_that_cannot_be_compared_with_a_torn_older_generation_is_said_to_be_unchecked(
    lived: Lived, audited, tmp_path: Path
):
    streams = await renewed(lived, 100)
    held = await messages(streams.ledger)
    held[49] = msgspec.structs.replace(held[49], body=b"{")
    torn = Streams(streams.events, streams.control, CopiedStream("LW_LEDGER", held))
    report = await audited(torn, stored({}), Part())
    assert report.clean
    key = tmp_path / "operator.json"
    secrets = Credentials(name="o", role="operator", cluster=CLUSTER, nkey_seed="", master_public=SIGNER.public)
    save_credentials(key, secrets)
    place = Opened(streams=torn, find=stored({}), feed=CopiedStream("LW_DECISIONS", []))
    await check_feed(Source(kind="stream", cluster=CLUSTER, key=str(key)), place, report, ranged=False)
    assert report.clean
    assert "the feed: ledger message 50: not a commit" in report.unchecked[-1]


class Emptied(CopiedStream):
    """A stream of which all messages are gone: purged, or dropped for their age."""

    async def bounds(self) -> Bounds:
        return Bounds(first=6, last=5, created_ns=0)


async def test_a_ledger_that_is_empty_and_has_not_always_been_is_a_difference(lived: Lived, audited):
    """Nothing else may be there to speak against it: no checkpoint, no archive."""
    streams = Streams(lived.streams.events, lived.streams.control, Emptied("LW_LEDGER", []))
    report = await audited(streams, stored({}), Part())
    assert "ends at version 0, though message 5 has stood there" in report.differences[0].detail
