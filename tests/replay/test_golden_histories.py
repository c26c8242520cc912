"""Histories that were decided before are decided again to the same bytes: a rule does not change by accident."""

import hashlib
from collections import Counter
from typing import get_args

import pytest

from adapters.log.reader import Reader
from domain.events import Decision, LeaseGranted, OwnerPlanned
from domain.events.commit import commit_digest
from domain.ids import Generation
from domain.master.state import POLICY, State, encode_state
from domain.master.step import Position, Range, after, check_chain, fold_into, replay
from tests.support import golden
from tests.support.history import CLUSTER, SECRET

END = {
    "random": "b9e6e6358b1ed46f84930737fbfb4122",
    "realistic": "d6f3aa348828f11b16644760795cf1cf",
    "rules": "031431713e03d72cc3e902958ef8254d",
    "switch": "009b1bbcb09abfec7a9f39e9a4588cc5",
}
"""Digest of the state at the end, its layout included."""


@pytest.mark.parametrize("name", sorted(END))
def test_a_stored_history_is_decided_again_to_the_same_bytes(name: str):
    recorder, commits = golden.load(name)
    reader, state, position = Reader(CLUSTER, SECRET), State(), Position(commits[0].generation)
    for stored in commits:
        check_chain(position, stored)
        state.term, span = stored.term, Range()
        control = [(reader.control(message), message) for message in recorder.control[stored.clo : stored.chi]]
        fold_into(state, span, control, reader.facts(recorder.facts[stored.lo : stored.hi]))
        assert commit_digest(stored.prev, span.messages(), stored) == stored.digest
        replay(state, position, stored, span)
        position = after(stored)
    assert hashlib.blake2b(encode_state(state), digest_size=16).hexdigest() == END[name]


def test_the_stored_histories_are_of_this_policy_and_show_every_kind_of_decision():
    kinds: Counter[str] = Counter()
    found: set[str] = set()
    switches = 0
    for name in END:
        _, commits = golden.load(name)
        assert {made.policy for made in commits} == {POLICY}
        assert {made.generation for made in commits} == {Generation("00010000")}
        decisions = [decision for made in commits for decision in made.decisions]
        kinds.update(type(decision).__name__ for decision in decisions)
        found |= {v.outcome for each in decisions if isinstance(each, OwnerPlanned) for v in each.verdicts}
        switches += sum(isinstance(each, LeaseGranted) and each.switch_us > 0 for each in decisions)
    assert switches
    assert found == {"granted", "probe", "skipped"}
    assert set(kinds) == {each.__name__ for each in get_args(Decision)} - {"SafeModeEntered", "SafeModeLeft"}


def test_the_stored_histories_are_small():
    assert sum(path.stat().st_size for path in golden.FOLDER.iterdir()) <= 200_000
