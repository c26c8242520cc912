"""Histories that were decided before are decided again to the same bytes: a rule does not change by accident."""

import hashlib
from collections import Counter
from typing import get_args

import pytest

from adapters.log.reader import Reader
from domain.events import Decision, LeaseGranted, OwnerPlanned
from domain.events.commit import commit_digest
from domain.ids import Generation
from domain.master.state import POLICY
from domain.master.step import Position, Range, after, check_chain
from domain.policies import KNOWN
from tests.support import golden
from tests.support.history import CLUSTER, SECRET

END = {
    "water-3": {
        "random": "43f217eb06536a3f0cc780d6630e3928",
        "realistic": "77c486b3eecdf356fed0be873ead0854",
        "rules": "bae81a6329c3cfb152c4784396f34041",
        "switch": "56e32bea7b71980c3ce74f5374f3e52b",
    },
}
"""By policy: digest of the state at the end, its layout included."""


@pytest.mark.parametrize(("policy", "name"), [(policy, name) for policy in sorted(END) for name in sorted(END[policy])])
def test_a_stored_history_is_decided_again_to_the_same_bytes_by_the_rules_of_its_time(policy: str, name: str):
    recorder, commits = golden.load(name, policy)
    rules = KNOWN[policy]
    reader, state, position = Reader(CLUSTER, SECRET), rules.begun(0, 0), Position(commits[0].generation)
    for stored in commits:
        check_chain(position, stored)
        state.term, span = stored.term, Range()
        control = [(reader.control(message), message) for message in recorder.control[stored.clo : stored.chi]]
        rules.fold_into(state, span, control, reader.facts(recorder.facts[stored.lo : stored.hi]))
        assert commit_digest(stored.prev, span.messages(), stored) == stored.digest
        rules.replay(state, position, stored, span)
        position = after(stored)
    assert hashlib.blake2b(rules.encode_state(state), digest_size=16).hexdigest() == END[policy][name]


def test_every_policy_that_can_be_met_has_stored_histories_and_each_of_them_is_known():
    assert sorted(END) == sorted(KNOWN) == sorted(path.name for path in golden.FOLDER.iterdir())


def test_the_stored_histories_are_of_this_policy_and_show_every_kind_of_decision():
    kinds: Counter[str] = Counter()
    found: set[str] = set()
    switches = 0
    for name in END[POLICY]:
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
    assert sum(path.stat().st_size for path in golden.FOLDER.rglob("*.gz")) <= 200_000 * len(END)
