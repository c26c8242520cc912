"""A wall clock that jumps stops no checkpoint and makes no doubt: they are compared by version, and the jump is said."""

import asyncio
import logging
from pathlib import Path

import msgspec
import pytest

from adapters.keys import Signer, new_nkey
from adapters.log.checkpoints import CheckpointBook, Kept, dated_ahead, sign
from adapters.log.history import last_commit, stored_commit
from adapters.log.scan import Ages, scan
from domain.errors import HistoryGapError
from domain.events import Checkpoint, Input
from domain.ids import Generation
from domain.master.step import Position, Range
from services.master.checkpoints import Checkpoints, Where
from tests.support.audited import Lived, checkpoint, lived_on
from tests.support.waiting import until
from tests.unit.test_log_scan import DAY_NS, Made

SIGNER = Signer(new_nkey()[0])
DAY_US = 86_400_000_000


class Jumping:
    """A clock whose wall jumps about while monotonic time goes on."""

    def __init__(self, *offsets_us: int) -> None:
        self._offsets_us, self._mono_us = list(offsets_us), 0

    def monotonic_us(self) -> int:
        return self._mono_us

    def wall_us(self) -> int:
        self._mono_us += 1_000_000
        offset_us = self._offsets_us.pop(0) if len(self._offsets_us) > 1 else self._offsets_us[0]
        return 1_790_000_000_000_000 + self._mono_us + offset_us


class Heard:
    def __init__(self) -> None:
        self.said: list[Checkpoint] = []

    async def state(self, _: int, body: Input) -> None:
        assert isinstance(body, Checkpoint)
        self.said.append(body)


async def test_they_go_on_each_minute_however_the_wall_clock_jumps_and_the_jump_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    clock, heard, version = Jumping(0, 10 * DAY_US, 10 * DAY_US, 0), Heard(), iter(range(1, 1000))
    kept = Checkpoints(CheckpointBook(tmp_path), SIGNER, "test", clock, every_s=0.01)
    now = Position(Generation("00010000"))

    def where() -> Where:
        nonlocal now
        now = msgspec.structs.replace(now, version=next(version), digest="ab" * 16)
        return Where(now, "", Range())

    with caplog.at_level(logging.WARNING):
        task = asyncio.ensure_future(kept.keep(where, heard))
        await until("five of them", lambda: len(heard.said) >= 5)
        task.cancel()
    dates = [each.at_us for each in heard.said[:5]]
    assert dates != sorted(dates)
    versions = [each.version for each in heard.said]
    assert versions == sorted(set(versions))
    jumps = [record.by_s for record in caplog.records if record.message == "clock_jumped"]  # type: ignore[attr-defined]
    assert jumps == [864_000, -864_000]


async def test_one_that_is_dated_ahead_is_said_by_the_master_that_reads_it_and_by_an_audit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    book, clock = CheckpointBook(tmp_path), Jumping(0)
    for version, ahead_us in ((1, 0), (2, 10 * DAY_US), (3, 0), (4, 20 * DAY_US)):
        draft = Checkpoint(
            cluster="test", generation=Generation("00010000"), version=version, digest="ab" * 16, hi=1, chi=1,
            at_us=clock.wall_us() + ahead_us,
        )  # fmt: skip
        await book.add(sign(draft, SIGNER))
    kept = Checkpoints(book, SIGNER, "test", clock)
    with caplog.at_level(logging.WARNING):
        read = await kept.of(Generation("00010000"))
    told = [record.what for record in caplog.records if record.message == "checkpoint_dated_ahead"]  # type: ignore[attr-defined]
    assert [each[:60] for each in dated_ahead(reversed(read))] == [told[0][:60]]
    assert "version 2 is 863999 s after that of version 3" in told[0]
    assert "version 4: 17279" in told[1]


def test_dates_that_differ_as_two_clocks_do_are_nothing_to_say():
    def at(version: int, at_us: int) -> Kept:
        draft = Checkpoint(
            cluster="test", generation=Generation("g"), version=version, digest="", hi=1, chi=1, at_us=at_us
        )
        return Kept(checkpoint=draft, source="a book")

    assert dated_ahead([at(1, 50_000_000), at(2, 1)]) == []
    assert dated_ahead([at(1, 70_000_000), at(2, 1)]) != []


@pytest.fixture(scope="module")
def lived() -> Lived:
    return lived_on()


@pytest.mark.parametrize(("ahead_days", "doubts"), [(0, False), (40, False), (-20, True)])
async def test_commits_that_are_gone_for_their_age_are_no_doubt_for_a_checkpoint_dated_ahead(
    lived: Lived, ahead_days: int, doubts: bool
):
    """A clock that was ahead once would have been a doubt until time had caught up with it."""
    ledger = Made("LW_LEDGER", [each async for batch in lived.streams.ledger.read(after=100) for each in batch])
    ledger.created_ns = lived.stamp_ns - 90 * DAY_NS
    streams = msgspec.structs.replace(lived.streams, ledger=ledger)
    first, head = await ledger.get(101), await last_commit(ledger)
    assert first is not None
    assert head is not None
    facts = Made("LW_EVENTS", [each async for batch in lived.streams.events.read(after=0) for each in batch])
    facts.created_ns = ledger.created_ns
    streams = msgspec.structs.replace(streams, events=facts)
    now_ns = lived.stamp_ns + 16 * DAY_NS
    true_us = lived.stamp_ns // 1000
    signed = [
        await checkpoint(lived, SIGNER, 50, at_us=true_us + ahead_days * DAY_US if ahead_days > 0 else true_us),
        await checkpoint(lived, SIGNER, 60, at_us=true_us),
    ]
    ages = Ages(events_ns=30 * DAY_NS, ledger_ns=14 * DAY_NS, now_ns=now_ns + min(0, ahead_days) * DAY_NS)
    checked = scan(streams, stored_commit(first), head, subject="lw.test.ledger", checkpoints=signed, ages=ages)
    if doubts:
        with pytest.raises(HistoryGapError, match="too young to be dropped"):
            await checked
    else:
        await checked
