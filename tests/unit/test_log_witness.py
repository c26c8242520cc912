"""The checkpoint file: the newest commit seen, whole or not at all, never an older one."""

import asyncio
from pathlib import Path

import pytest

from adapters.log.witness import FileWitnessBook
from domain.errors import HistoryError
from domain.ids import Generation
from domain.ports import Witnessed


def seen(version: int, generation: str = "00010000") -> Witnessed:
    return Witnessed(generation=Generation(generation), version=version, digest=f"{version:032x}")


async def test_what_was_kept_is_read_by_the_next_process(tmp_path: Path):
    path = tmp_path / "data" / "checkpoint.json"
    assert await FileWitnessBook(path).read() is None
    await FileWitnessBook(path).write(seen(7))
    assert await FileWitnessBook(path).read() == seen(7)
    assert [each.name for each in path.parent.iterdir()] == ["checkpoint.json"]


async def test_an_older_commit_never_replaces_a_newer_one_of_the_same_or_a_later_generation(tmp_path: Path):
    book = FileWitnessBook(tmp_path / "checkpoint.json")
    await book.write(seen(7))
    await book.write(seen(6))
    assert await book.read() == seen(7)
    await FileWitnessBook(tmp_path / "checkpoint.json").write(seen(5))
    assert await book.read() == seen(7)
    await book.write(seen(8, "00020000"))
    await book.write(seen(9, "00010000"))
    assert await book.read() == seen(8, "00020000")


async def test_writers_at_the_same_time_leave_the_newest(tmp_path: Path):
    book = FileWitnessBook(tmp_path / "checkpoint.json")
    await asyncio.gather(*(book.write(seen(version)) for version in (3, 9, 1, 8, 2)))
    assert await book.read() == seen(9)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"generation":"00010000","version":', b"\xff"])
async def test_a_damaged_checkpoint_is_not_taken_for_none(tmp_path: Path, content: bytes):
    path = tmp_path / "checkpoint.json"
    path.write_bytes(content)
    with pytest.raises(HistoryError, match="checkpoint"):
        await FileWitnessBook(path).read()
    with pytest.raises(HistoryError, match="checkpoint"):
        await FileWitnessBook(path).write(seen(1))


async def test_a_witness_that_may_not_be_read_is_a_doubt_and_is_put_aside_like_one_that_cannot_be(tmp_path: Path):
    path = tmp_path / "checkpoint.json"
    assert await FileWitnessBook(path).put_aside() == ""
    path.mkdir()  # whoever tests may be root, who may read every file
    book = FileWitnessBook(path)
    with pytest.raises(HistoryError, match="cannot be read"):
        await book.read()
    assert await book.put_aside() == str(path.with_suffix(".unreadable"))
    assert await book.read() is None
    await book.write(seen(3))
    assert await book.put_aside() == ""
    assert await FileWitnessBook(path).read() == seen(3)


async def test_a_witness_that_can_neither_be_read_nor_put_aside_is_a_doubt_that_says_both(tmp_path: Path):
    path = tmp_path / "checkpoint.json"
    path.write_bytes(b"\0")
    (path.with_suffix(".unreadable") / "something").mkdir(parents=True)
    with pytest.raises(HistoryError, match=r"must be a witnessed commit, is not.*nor can it be put aside"):
        await FileWitnessBook(path).put_aside()
