"""What a master states of where its ledger stood: every commit is signed for, whenever it comes."""

import asyncio
from pathlib import Path

from adapters.clock import SystemClock
from adapters.keys import Signer, new_nkey
from adapters.log.checkpoints import CheckpointBook
from domain.events import Checkpoint, Input
from domain.ids import Generation
from domain.master.step import Position, Range
from services.master.checkpoints import Checkpoints, Where
from tests.support.waiting import until


class Said:
    """Whoever states observations; keeps what was stated."""

    def __init__(self) -> None:
        self.versions: list[int] = []

    async def state(self, term: int, body: Input) -> None:
        assert isinstance(body, Checkpoint)
        assert term == 1
        self.versions.append(body.version)


async def test_a_commit_that_came_while_the_first_checkpoint_was_written_is_stated_all_the_same(tmp_path: Path):
    looked = 0

    def where() -> Where:
        """Return the claim at the first look, and from then on a ledger with one commit more."""
        nonlocal looked
        looked += 1
        version = min(looked, 2)
        return Where(Position(Generation("00010000"), version, 1, "ab" * 16, version, 0), "", Range())

    said = Said()
    kept = Checkpoints(CheckpointBook(tmp_path), Signer(new_nkey()[0]), "test", SystemClock(), every_s=0.01)
    keeping = asyncio.ensure_future(kept.keep(where, said))
    try:
        await until("it is stated", lambda: said.versions == [2])
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
    assert [each.checkpoint.version for each in await kept.book.read()] == [1, 2]
