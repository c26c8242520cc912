"""A commit is decided again by the rules that it names: a history may hold several, and one of them may be unknown here."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType

import msgspec
import pytest

from adapters.log.copied import CopiedStream
from adapters.log.history import Streams
from adapters.log.reader import Reader
from adapters.log.verify import verify
from domain.events.commit import Commit, encode_commit, seal
from domain.ids import Generation
from domain.master.step import Position, Range, after
from domain.policies import CURRENT, KNOWN, Policy, policy_of
from domain.ports import StoredMessage
from tests.support.history import CLUSTER, SECRET, Recorder, random_history
from tests.support.tidy import ROOT

OLD = "older-1"
PACKAGE = "frozen_for_a_test"


@pytest.fixture(scope="module")
def old_rules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Policy]:
    """Freeze today's rules as the script does, and change one of them: an older policy that decides otherwise."""
    folder = tmp_path_factory.mktemp("policies")
    freezer().freeze(folder / PACKAGE, PACKAGE)
    state = folder / PACKAGE / "master" / "state.py"
    state.write_text(state.read_text().replace(f'POLICY: Final = "{CURRENT.name}"', f'POLICY: Final = "{OLD}"'))
    planner = folder / PACKAGE / "master" / "planner.py"
    changed = planner.read_text().replace("VERDICTS_MAX = 16", "VERDICTS_MAX = 1")
    assert changed != planner.read_text(), "the rule that this test changes must be there"
    planner.write_text(changed)
    sys.path.insert(0, str(folder))
    try:
        yield policy_of(
            importlib.import_module(f"{PACKAGE}.master.state"), importlib.import_module(f"{PACKAGE}.master.step")
        )
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
            del sys.modules[name]


def freezer() -> ModuleType:
    """Return the script that contributors run."""
    path = ROOT / "docs/contributing/freeze_policy.py"
    spec = importlib.util.spec_from_file_location("freeze_policy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Rules:
    """What decides, of one policy: domain.master's modules, or a frozen copy of them."""

    def __init__(self, package: str) -> None:
        self.step = importlib.import_module(f"{package}.step")
        self.decide = importlib.import_module(f"{package}.decide")
        self.state = importlib.import_module(f"{package}.state")


class Reign:
    """A master's folding and committing, by any rules."""

    def __init__(self, rules: Rules, state: object, position: Position) -> None:
        self.rules, self.state, self.position = rules, state, position
        self.commits: list[Commit] = []
        self.span = Range()

    def claim(self) -> None:
        """Store the first commit of a term: over no input, with the digest of the state."""
        self.state.term = self.position.term + 1  # type: ignore[attr-defined]  # of either kind
        self._commit(0)

    def take(self, facts: list[StoredMessage], control: list[StoredMessage]) -> None:
        reader = Reader(CLUSTER, SECRET)
        decrees = [(reader.control(message), message) for message in control]
        self.rules.step.fold_into(self.state, self.span, decrees, reader.facts(facts))
        while self._commit(None):
            pass

    def _commit(self, first: int | None) -> bool:
        head = self.rules.decide.Head(self.position.generation, self.position.version + 1)
        decided = self.rules.decide.decide(self.state, head, *(() if first is None else (first,)))
        if first is None and not decided.decisions:
            return False
        made = self.rules.step.commit(self.state, self.position, self.span, decided, with_state=first is not None)
        self.position, self.span = after(made), Range()
        self.commits.append(made)
        return True


def restored(old: Policy, recorder: Recorder, commits: list[Commit]) -> object:
    """Return the state after some commits as a new master has it: what was folded beyond them is not in it."""
    reader, state = Reader(CLUSTER, SECRET), old.begun(0, 0)
    for made in commits:
        state.term, span = made.term, Range()
        control = [(reader.control(m), m) for m in recorder.control[made.clo : made.chi]]
        old.fold_into(state, span, control, reader.facts(recorder.facts[made.lo : made.hi]))
        old.follow(state, made)
    return state


def history_with_a_switch(old: Policy) -> tuple[Recorder, list[Commit]]:
    """Let the old rules decide half of a history, and today's the rest: the state is taken over by a commit of its own."""
    recorder = random_history(5, 500)
    half = len(recorder.facts) // 2
    first = Reign(Rules(f"{PACKAGE}.master"), old.begun(0, 0), Position(Generation("00010000")))
    first.claim()
    first.take(recorder.facts[:1], recorder.control)
    for at in range(1, half, 7):
        first.take(recorder.facts[at : min(at + 7, half)], [])
    stored = restored(old, recorder, first.commits)
    second = Reign(Rules("domain.master"), CURRENT.take_over(old, stored), first.position)
    folded = second.position.hi
    second.claim()
    for at in range(folded, len(recorder.facts), 7):
        second.take(recorder.facts[at : at + 7], [])
    return recorder, [*first.commits, *second.commits]


def streams_of(recorder: Recorder, commits: list[Commit]) -> Streams:
    ledger = [
        StoredMessage(made.version, recorder.now_ns, "lw.test.ledger", b"", encode_commit(made)) for made in commits
    ]
    held = (("LW_EVENTS", recorder.facts), ("LW_CONTROL", recorder.control), ("LW_LEDGER", ledger))
    return Streams(*(CopiedStream(name, list(messages)) for name, messages in held))


async def test_a_history_that_changes_its_policy_is_decided_again_by_both(old_rules: Policy):
    recorder, commits = history_with_a_switch(old_rules)
    known = {**KNOWN, OLD: old_rules}
    report = await verify(streams_of(recorder, commits), Reader(CLUSTER, SECRET), policies=known)
    assert report.clean, report.differences
    assert set(report.policies) == {OLD, CURRENT.name}
    assert min(report.policies.values()) > 10


async def test_the_old_rules_do_decide_otherwise(old_rules: Policy):
    recorder, commits = history_with_a_switch(old_rules)
    today = {OLD: msgspec.structs.replace(CURRENT, name=OLD), CURRENT.name: CURRENT}
    report = await verify(streams_of(recorder, commits), Reader(CLUSTER, SECRET), policies=today)
    assert [one.place for one in report.differences] == ["ledger"]


async def test_an_unknown_policy_is_said_to_be_needed_and_is_no_difference(old_rules: Policy):
    recorder, commits = history_with_a_switch(old_rules)
    report = await verify(streams_of(recorder, commits), Reader(CLUSTER, SECRET))
    assert report.differences == []
    assert not report.clean
    assert f"was decided by policy {OLD}" in report.stopped
    assert CURRENT.name in report.stopped


async def test_a_policy_that_changes_without_a_commit_of_its_own_is_named(old_rules: Policy):
    recorder, commits = history_with_a_switch(old_rules)
    at = next(at for at, made in enumerate(commits) if made.policy == OLD and made.hi > made.lo and at > 5)
    for index in range(at, len(commits)):
        made = commits[index]
        renamed = msgspec.structs.replace(
            made, policy=CURRENT.name if index == at else made.policy, prev=commits[index - 1].digest
        )
        inputs = (*recorder.control[made.clo : made.chi], *recorder.facts[made.lo : made.hi])
        commits[index] = seal(renamed, inputs)
    known = {**KNOWN, OLD: old_rules}
    report = await verify(streams_of(recorder, commits), Reader(CLUSTER, SECRET), policies=known)
    assert f"commit {commits[at].version}: policy {OLD} becomes {CURRENT.name}" in report.differences[0].detail
