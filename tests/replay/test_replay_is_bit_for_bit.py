"""Deciding again from the stored messages gives the stored bytes, however they were read."""

import hashlib
import random
import subprocess
import sys

import msgspec
import pytest

from adapters.log.reader import Reader
from domain.errors import ReplayDiffersError
from domain.events import LeaseGranted
from domain.events.commit import Commit, decode_commit, encode_commit
from domain.master.state import State, decode_state, encode_state
from domain.master.step import Position, Range, after, check_chain, fold_into, follow, replay
from domain.ports import StoredMessage
from tests.support.history import CLUSTER, SECRET, Master, Recorder, random_history

BATCHES = (1, 7, 1000)


def lived(seed: int, events: int = 1500, *, control_last: bool = False) -> tuple[Recorder, Master]:
    recorder, master, dice = random_history(seed, events), Master(control_last=control_last), random.Random(seed)
    master.take_all(recorder, lambda: dice.randint(1, 40))
    return recorder, master


def verify(recorder: Recorder, commits: list[Commit], batch: int, *, through_snapshots: bool = False) -> State:
    """Replay every commit, folding its range in batches; `through_snapshots`: go on from an encoded state each time."""
    reader = Reader(CLUSTER, SECRET)
    state, position = State(), Position(commits[0].generation)
    for stored in commits:
        check_chain(position, stored)
        state.term = stored.term
        span = Range()
        fold_into(state, span, [(reader.control(m), m) for m in recorder.control[stored.clo : stored.chi]], [])
        for at in range(stored.lo, stored.hi, batch):
            fold_into(state, span, [], reader.facts(recorder.facts[at : min(at + batch, stored.hi)]))
        replay(state, position, stored, span)
        position = after(stored)
        if through_snapshots:
            state = decode_state(encode_state(state))
    return state


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_history_is_decided_again_to_the_same_bytes_for_any_reading_batch(seed: int, batch: int):
    recorder, master = lived(seed)
    assert len(master.commits) > 50
    assert any(isinstance(decision, LeaseGranted) for made in master.commits for decision in made.decisions)
    verify(recorder, master.commits, batch)


@pytest.mark.parametrize("seed", range(20, 30))
def test_it_does_not_matter_which_of_the_two_streams_reached_the_master_first(seed: int):
    recorder, master = lived(seed, 700, control_last=True)
    verify(recorder, master.commits, 1000)


def test_a_state_restored_from_its_snapshot_decides_as_the_one_that_grew():
    recorder, master = lived(4)
    assert encode_state(verify(recorder, master.commits, 1000, through_snapshots=True)) == encode_state(
        verify(recorder, master.commits, 1000)
    )


def test_a_follower_that_only_applies_has_the_state_of_the_one_that_decided():
    recorder, master = lived(5)
    reader, state = Reader(CLUSTER, SECRET), State()
    for stored in master.commits:
        state.term = stored.term
        span = Range()
        control = [(reader.control(m), m) for m in recorder.control[stored.clo : stored.chi]]
        fold_into(state, span, control, reader.facts(recorder.facts[stored.lo : stored.hi]))
        follow(state, stored)
    assert encode_state(state) == encode_state(verify(recorder, master.commits, 1000))


def test_a_commit_survives_being_stored():
    _, master = lived(6, 600)
    assert all(encode_commit(decode_commit(encode_commit(made))) == encode_commit(made) for made in master.commits)


@pytest.mark.parametrize("field", ["body", "subject", "stamp_ns", "headers"])
def test_one_changed_input_is_named_by_its_commit(field: str):
    recorder, master = lived(7, 600)
    target = master.commits[len(master.commits) // 2]
    index = target.lo  # its first fact
    old = recorder.facts[index]
    value = getattr(old, field)
    changed = value + 1 if isinstance(value, int) else value + (b" " if isinstance(value, bytes) else "x")
    recorder.facts[index] = msgspec.structs.replace(old, **{field: changed})
    with pytest.raises(ReplayDiffersError, match=f"commit {target.version}:"):
        verify(recorder, master.commits, 100)


def test_a_lost_input_is_named_by_its_commit():
    recorder, master = lived(8, 600)
    target = next(made for made in master.commits[len(master.commits) // 2 :] if made.hi > made.lo)
    gone = target.lo
    recorder.facts[gone] = StoredMessage(
        gone + 1, recorder.facts[gone].stamp_ns, "lw.test.node.n0.queue.x.held", b"", b""
    )
    with pytest.raises(ReplayDiffersError, match=f"commit {target.version}:"):
        verify(recorder, master.commits, 100)


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_the_same_commits_come_out_under_any_hash_seed(hash_seed: str):
    code = (
        "import random, hashlib; from tests.support.history import Master, random_history\n"
        "from domain.events.commit import encode_commit\n"
        "m, d = Master(), random.Random(9); m.take_all(random_history(9, 800), lambda: d.randint(1, 30))\n"
        "print(hashlib.sha256(b''.join(encode_commit(c) for c in m.commits)).hexdigest())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
    )
    master, dice = Master(), random.Random(9)
    master.take_all(random_history(9, 800), lambda: dice.randint(1, 30))
    assert run.stdout.strip() == hashlib.sha256(b"".join(encode_commit(c) for c in master.commits)).hexdigest()
