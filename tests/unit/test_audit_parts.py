"""A history verified in parts is verified whole: each part ends where the next begins, in the very same state."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from adapters.keys import Credentials, Signer, new_nkey, save_credentials
from adapters.log import bundle, bundle_writer
from adapters.log.bundle_format import STREAMS
from adapters.log.copied import CopiedStream
from adapters.log.history import History, Streams
from adapters.log.reader import Reader
from adapters.log.report import Report
from adapters.log.segments import BadRangeError, FindState, Plan, Segment, join, plan, segments
from adapters.log.travel import last_until
from adapters.log.verify import Part, verify_part
from services.cli.audit_source import Source, opened
from services.cli.audit_workers import verified
from tests.support.audited import Lived, checkpoint, lived_on, stored
from tests.support.history import CLUSTER, SECRET


@pytest.fixture(scope="module")
def lived() -> Lived:
    return lived_on()


NONE = stored({})
SIGNER = Signer(new_nkey()[0])


def history(lived: Lived) -> History:
    return History(lived.streams, Reader(CLUSTER, SECRET))


async def parts_of(lived: Lived, find: FindState, count: int) -> list[Segment]:
    planned = await plan(lived.streams, find, Part())
    return [each async for each in segments(history(lived), find, planned, count)]


async def reports_of(lived: Lived, parts: list[Segment]) -> list[Report]:
    return [(await verify_part(history(lived), each.part))[0] for each in parts]


@pytest.mark.parametrize("with_states", [True, False], ids=["from stored states", "from states made on the way"])
async def test_the_parts_together_are_the_whole(lived: Lived, with_states: bool):
    parts = await parts_of(lived, stored(lived.states) if with_states else NONE, 4)
    assert len(parts) == 4
    whole = join(parts, await reports_of(lived, parts))
    alone, _ = await verify_part(history(lived), Part())
    assert whole.clean
    for field in ("commits", "facts", "control", "decisions", "rejected", "policies", "digest", "last_version"):
        assert getattr(whole, field) == getattr(alone, field), field


async def test_a_part_that_ends_in_another_state_than_the_next_begins_in_is_named(lived: Lived):
    parts = await parts_of(lived, NONE, 3)
    reports = await reports_of(lived, parts)
    parts[1] = msgspec.structs.replace(parts[1], begin_state="00" * 16)
    whole = join(parts, reports)
    assert "the next part begins with" in whole.differences[0].detail
    assert whole.commits == reports[0].commits


async def test_a_stored_state_that_no_commit_vouches_for_is_not_begun_in(lived: Lived):
    false = {version: content + b"x" for version, content in lived.states.items()}
    parts = await parts_of(lived, stored(false), 3)
    assert join(parts, await reports_of(lived, parts)).clean


async def test_a_range_begins_at_the_nearest_stored_state_and_follows_to_its_first_version(lived: Lived):
    planned = await plan(lived.streams, stored(lived.states), Part(first=103, last=120))
    report, _ = await verify_part(history(lived), planned.part)
    assert (report.first_version, report.last_version, report.commits) == (103, 120, 18)
    assert report.followed == 3
    assert report.clean


async def test_what_the_stream_no_longer_holds_is_left_out_and_said(lived: Lived):
    facts = [message async for batch in lived.streams.events.read(after=400) for message in batch]
    young = Streams(CopiedStream("LW_EVENTS", facts), lived.streams.control, lived.streams.ledger)
    planned = await plan(young, stored(lived.states), Part())
    assert "no longer in the stream" in planned.unchecked[0]
    report, _ = await verify_part(History(young, Reader(CLUSTER, SECRET)), planned.part)
    assert report.clean
    assert report.last_version == lived.last
    with pytest.raises(BadRangeError, match="--against archive"):
        await plan(young, NONE, Part())


async def test_versions_that_are_not_stored_are_refused_in_one_line(lived: Lived):
    with pytest.raises(BadRangeError, match=f"stored are 1 to {lived.last}"):
        await plan(lived.streams, NONE, Part(first=lived.last + 1))


async def test_a_moment_names_the_newest_version_stored_until_then(lived: Lived):
    begin = lived.stamp_ns
    assert await last_until(lived.streams.ledger, begin) == 0
    assert await last_until(lived.streams.ledger, begin + 7 * 10**9) == 7
    assert await last_until(lived.streams.ledger, begin + 7 * 10**9 + 1) == 7
    assert await last_until(lived.streams.ledger, begin + 10**15) == lived.last


async def test_processes_of_their_own_find_what_one_finds(
    lived: Lived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bundle_writer, "_PIECE", 20)
    copy, key = tmp_path / "copy.zip", tmp_path / "operator.json"
    await bundle.export(lived.streams, CLUSTER, copy, extra=bundle.Extra(states=sorted(lived.states.items())))
    secrets = Credentials(name="o", role="operator", cluster=CLUSTER, nkey_seed="", cluster_mac_secret=SECRET)
    save_credentials(key, secrets)
    source = Source(kind="copy", cluster=CLUSTER, copy=str(copy), key=str(key))
    silent: Callable[[int, int], None] = lambda _, __: None  # noqa: E731
    asked = Part(checkpoints=[await checkpoint(lived, SIGNER, version) for version in (3, 120, lived.last)])
    found, unread = list[Report](), list[set[str]]()
    for count in (1, 2):
        async with opened(source) as place:
            found.append(await verified(source, place, asked, workers=count, fold_max=1000, progress=silent))
            assert place.copy is not None
            unread.append(
                {each.name for each in place.copy.header.members if each.stream in STREAMS} - place.copy.sound
            )
    assert unread == [set(), set()], "every piece was read, and found to be what the manifest says"
    assert found[1].segments > 1
    assert [each.line() for each in found] == [f"audit verify: {lived.last} commits, 0 differences"] * 2
    for field in ("producers", "generation", "keys", "checkpoints", "checkpoints_met", "policies", "decisions"):
        assert getattr(found[1], field) == getattr(found[0], field), field
    assert found[1].checkpoints_met == 3


async def test_of_a_copy_only_what_was_not_read_for_deciding_is_looked_at_again(
    lived: Lived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # given a copy in many pieces, of which only those of its later commits are decided again
    monkeypatch.setattr(bundle_writer, "_PIECE", 20)
    path = tmp_path / "copy.zip"
    await bundle.export(lived.streams, CLUSTER, path, extra=bundle.Extra(states=sorted(lived.states.items())))
    source = Source(kind="copy", cluster=CLUSTER, copy=str(path))
    async with opened(source) as place:
        copy = place.copy
        assert copy is not None
        asked = Part(first=lived.last // 2)
        report = await verified(source, place, asked, workers=1, fold_max=1000, progress=lambda _, __: None)
        # then those need no second look, and the others get one
        sound = set(copy.sound)
        pieces = {each.name for each in copy.header.members if each.stream in STREAMS}
        assert report.clean
        assert 3 < len(sound & pieces) < len(pieces)
        again: set[str] = set()
        reading = copy.content

        def watched(member: bundle.Member) -> bytes:
            again.add(member.name)
            return reading(member)

        monkeypatch.setattr(copy, "content", watched)
        assert copy.damaged == []
        assert pieces - sound <= again
        assert not sound & again


async def test_a_policy_that_this_version_does_not_have_is_no_difference_to_several_processes_either(
    lived: Lived, tmp_path: Path
):
    copy = tmp_path / "copy.zip"
    ledger = [message async for batch in lived.streams.ledger.read(after=0) for message in batch]
    ledger[149] = msgspec.structs.replace(
        ledger[149], body=ledger[149].body.replace(b'"policy":"', b'"policy":"of-tomorrow-')
    )
    streams = Streams(lived.streams.events, lived.streams.control, CopiedStream("LW_LEDGER", ledger))
    await bundle.export(streams, CLUSTER, copy)
    source = Source(kind="copy", cluster=CLUSTER, copy=str(copy))
    async with opened(source) as place:
        for workers in (1, 2):
            report = await verified(source, place, Part(), workers=workers, fold_max=1000, progress=lambda _, __: None)
            assert report.differences == []
            assert "commit 150: was decided by policy of-tomorrow-" in report.stopped


def test_a_plan_of_nothing_is_a_plan():
    assert Plan(part=Part()).last == 0
