"""Signed checkpoints: kept in bounded files, believed for their signature, and whole or noticed."""

from pathlib import Path

import msgspec
import pytest

from adapters.keys import Signer, new_nkey
from adapters.log import checkpoints
from adapters.log.checkpoints import CheckpointBook, check_signed, is_signed, sign
from domain.errors import HistoryError
from domain.events import Checkpoint
from domain.ids import Generation

SIGNER = Signer(new_nkey()[0])
FIRST, SECOND = Generation("00010000"), Generation("0002abcd")


def at(version: int, generation: Generation = FIRST, signer: Signer = SIGNER) -> Checkpoint:
    draft = Checkpoint(
        cluster="test", generation=generation, version=version, digest="ab" * 16, hi=version, chi=1, at_us=version
    )
    return sign(draft, signer)


async def test_they_come_back_in_order_and_a_new_generation_has_its_own(tmp_path: Path):
    book = CheckpointBook(tmp_path / "checkpoints")
    for version in (1, 2):
        await book.add(at(version))
    await book.add(at(3, SECOND))
    assert [kept.checkpoint for kept in await book.read(FIRST)] == [at(1), at(2)]
    assert [kept.checkpoint.version for kept in await book.read()] == [1, 2, 3]
    assert book.generations() == [FIRST, SECOND]


async def test_files_are_ended_by_size_and_only_so_many_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoints, "FILE_BYTES_MAX", 1000)
    monkeypatch.setattr(checkpoints, "FILES_MAX", 3)
    book = CheckpointBook(tmp_path)
    for version in range(1, 31):
        await book.add(at(version))
    assert len(list(tmp_path.iterdir())) == 3
    kept = [each.checkpoint.version for each in await book.read()]
    assert kept == list(range(kept[0], 31))


async def test_what_a_power_cut_leaves_of_a_line_is_cut_off_by_the_next_one(tmp_path: Path):
    book = CheckpointBook(tmp_path)
    await book.add(at(1))
    file = next(tmp_path.iterdir())
    file.write_bytes(file.read_bytes() + b'{"type":"obs.check')
    assert [kept.checkpoint.version for kept in await book.read()] == [1]
    await book.add(at(2))
    assert [kept.checkpoint.version for kept in await book.read()] == [1, 2]


async def test_a_line_that_was_torn_before_a_new_generation_began_is_no_doubt_about_the_old_one(tmp_path: Path):
    book = CheckpointBook(tmp_path)
    await book.add(at(1))
    file = next(tmp_path.iterdir())
    file.write_bytes(file.read_bytes() + b'{"type":"obs.check')
    await book.add(at(2, SECOND))
    assert [kept.checkpoint.version for kept in await book.read()] == [1, 2]


async def test_a_line_that_is_none_is_named(tmp_path: Path):
    book = CheckpointBook(tmp_path)
    await book.add(at(1))
    file = next(tmp_path.iterdir())
    file.write_bytes(b"nothing\n" + file.read_bytes())
    with pytest.raises(HistoryError, match="line 1 must be a checkpoint"):
        await book.read()


def test_a_checkpoint_is_believed_for_the_masters_key_alone():
    good = at(1)
    assert is_signed(good)
    for field, value in {"version": 2, "digest": "cd" * 16, "hi": 9, "tail": "x", "at_us": 0}.items():
        assert not is_signed(msgspec.structs.replace(good, **{field: value})), field
    other = at(1, signer=Signer(new_nkey()[0]))
    assert is_signed(other)
    kept = [checkpoints.Kept(checkpoint=other, source="a file")]
    with pytest.raises(HistoryError, match="must be signed with the master's key"):
        check_signed(kept, SIGNER.public)


async def test_a_copy_that_somebody_has_laid_beside_the_files_is_none_of_them(tmp_path: Path):
    book = CheckpointBook(tmp_path)
    await book.add(at(1))
    file = next(tmp_path.iterdir())
    for name in (f"{file.stem} (copy).jsonl", f"{file.stem}-old.jsonl", "zz.notes-000001.jsonl"):
        (tmp_path / name).write_bytes(b"{")
    assert book.generations() == [FIRST]
    await book.add(at(2))
    assert [kept.checkpoint.version for kept in await book.read()] == [1, 2]
