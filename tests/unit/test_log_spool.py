"""The spool: what was stated survives the process, in order, within its bound."""

import shutil
from pathlib import Path

import pytest

from adapters.log.spool import URGENT_BYTES, Spool, SpooledFact
from domain.ids import Incarnation

LIFE = Incarnation("ab" * 16)


def fact(pseq: int, size: int = 50) -> SpooledFact:
    return SpooledFact(LIFE, pseq, "lw.local.node.n1.status.stopped", b"x" * size)


def kept(spool: Spool, *pseqs: int, size: int = 50) -> list[SpooledFact]:
    stated = [fact(pseq, size) for pseq in pseqs]
    assert [spool.append(each) for each in stated] == ["kept"] * len(stated)
    return stated


def test_facts_are_taken_in_order_by_the_process_that_stated_them(tmp_path: Path):
    spool = Spool(tmp_path)
    stated = kept(spool, 1, 2, 3)
    assert spool.waiting == 3
    assert spool.take(2) == stated[:2]
    stated += kept(spool, 4)
    assert spool.take(9) == stated[2:]
    assert spool.take(9) == []


def test_what_was_not_acknowledged_is_the_first_that_the_next_process_takes(tmp_path: Path):
    first = Spool(tmp_path)
    stated = kept(first, 1, 2, 3, 4)
    first.take(3)
    first.acknowledge(2, seq=77)
    # killed: nothing is closed
    second = Spool(tmp_path)
    assert second.acknowledged_seq == 77
    stated += kept(second, 5)
    assert second.take(9) == stated[2:]


def test_a_process_that_acknowledged_everything_leaves_nothing(tmp_path: Path):
    first = Spool(tmp_path)
    kept(first, 1, 2)
    first.take(2)
    first.acknowledge(2, seq=9)
    second, third = Spool(tmp_path), Spool(tmp_path)
    assert (second.waiting, third.waiting, third.acknowledged_seq) == (0, 0, 9)


def test_what_three_processes_left_comes_in_order(tmp_path: Path):
    stated = []
    for life in range(3):
        spool = Spool(tmp_path)
        stated += kept(spool, 3 * life + 1, 3 * life + 2)
        spool.take(1)
        spool.acknowledge(1, seq=life + 1)
    assert Spool(tmp_path).take(9) == stated[3:]


def test_a_record_that_was_cut_anywhere_is_left_out_and_what_is_before_it_kept(tmp_path: Path):
    whole = tmp_path / "whole"
    stated = kept(Spool(whole), 1, 2, 3)
    (segment,) = whole.iterdir()
    content = segment.read_bytes()
    for length in range(len(content)):
        folder = tmp_path / str(length)
        folder.mkdir()
        (folder / segment.name).write_bytes(content[:length])
        found = Spool(folder).take(9)
        assert found == stated[: len(found)]
        assert len(found) == 3 * length // len(content)


def test_a_damaged_byte_ends_what_is_believed(tmp_path: Path):
    stated = kept(Spool(tmp_path), 1, 2, 3)
    (segment,) = tmp_path.iterdir()
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    assert Spool(tmp_path).take(9) == stated[:1]


def test_acknowledged_facts_give_their_room_back(tmp_path: Path):
    spool = Spool(tmp_path, bytes_max=64_000)
    for pseq in range(1, 2001):
        kept(spool, pseq, size=500)
        spool.take(1)
        spool.acknowledge(1, seq=pseq)
    assert spool.used_bytes < 20_000
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == spool.used_bytes


def test_many_segments_are_taken_in_order_while_more_are_stated(tmp_path: Path):
    spool = Spool(tmp_path, bytes_max=64_000)
    taken: list[int] = []
    for pseq in range(1, 501):
        kept(spool, pseq, size=300)
        if pseq % 7 == 0:
            found = spool.take(6)
            taken += [each.pseq for each in found]
            spool.acknowledge(len(found), seq=pseq)
    taken += [each.pseq for each in spool.take(1000)]
    assert taken == list(range(1, 501))


def test_beyond_its_bound_a_spool_is_full_but_has_room_for_what_is_urgent(tmp_path: Path):
    spool = Spool(tmp_path, bytes_max=8_000)
    outcomes = [spool.append(fact(pseq, 900)) for pseq in range(1, 20)]
    assert outcomes[:5] == ["kept"] * 5
    assert outcomes[-1] == "full"
    assert spool.used_bytes <= 8_000
    assert spool.append(fact(99), urgent=True) == "kept"
    assert spool.append(fact(99, URGENT_BYTES), urgent=True) == "full"


def test_a_disk_that_refuses_is_said_to_be_broken(tmp_path: Path):
    spool = Spool(tmp_path / "spool", bytes_max=8_000)
    kept(spool, 1, size=1_500)
    shutil.rmtree(tmp_path / "spool")  # the next segment cannot be made
    assert spool.append(fact(2)) == "broken"


def test_the_files_are_for_this_user_alone(tmp_path: Path):
    Spool(tmp_path / "spool")
    (segment,) = (tmp_path / "spool").iterdir()
    assert ((tmp_path / "spool").stat().st_mode & 0o777, segment.stat().st_mode & 0o777) == (0o700, 0o600)


def test_facts_are_not_taken_out_of_order(tmp_path: Path):
    spool = Spool(tmp_path)
    kept(spool, 1, 2)
    with pytest.raises(AssertionError):
        spool.take_last()
