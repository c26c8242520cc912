"""Runs of rows: what says the same of the same pair goes on, whatever comes between and however it is read."""

from domain.events import Decision
from domain.ports import StoredMessage
from domain.subjects import LEDGER
from projections.folds import FOLDED_BY, GAP_NS, Runs, runs_of
from projections.project import Context, project
from projections.tables import column_names
from tests.support.facts import Ledger, granted, plan, verdict

SECOND_NS = 1_000_000_000
SKIPPED = verdict(outcome="skipped", code="cost_rejected", slots=0)
OTHER = verdict(helper="n3", outcome="skipped", code="node_silent", slots=0)
NAMES = column_names("decisions")


def ledger_of(*commits: tuple[float, Decision]) -> list[StoredMessage]:
    ledger = Ledger()
    return [ledger.commits(decision, at_ns=round(at_s * SECOND_NS) + 1) for at_s, decision in commits]


def rows_of(messages: list[StoredMessage], runs: Runs | None = None) -> tuple[list[dict[str, object]], Runs]:
    found = project(LEDGER, 1, messages, Context(router="test", runs=runs or {}))
    return [dict(zip(NAMES, row, strict=True)) for row in found.rows["decisions"]], found.runs


def folds(messages: list[StoredMessage]) -> list[tuple[object, object, object]]:
    return [(row["helper"], row["reason"], row["fold_id"]) for row in rows_of(messages)[0]]


def test_rows_that_say_the_same_of_a_pair_carry_the_sequence_of_the_first_one():
    messages = ledger_of((0, plan(SKIPPED, OTHER)), (10, plan(SKIPPED)), (20, plan(OTHER, SKIPPED)))
    assert folds(messages) == [
        ("n2", "cost_rejected", 1),
        ("n3", "node_silent", 1),
        ("n2", "cost_rejected", 1),
        ("n3", "node_silent", 1),
        ("n2", "cost_rejected", 1),
    ]


def test_another_outcome_ends_the_run_and_another_kind_does_not():
    messages = ledger_of(
        (0, plan(SKIPPED)), (1, granted()), (2, plan(SKIPPED)), (3, plan(verdict())), (4, plan(SKIPPED))
    )
    assert [fold for *_, fold in folds(messages)] == [1, 2, 1, 4, 5]


def test_a_long_silence_ends_the_run():
    gap_s = GAP_NS / SECOND_NS
    messages = ledger_of((0, plan(SKIPPED)), (gap_s, plan(SKIPPED)), (2 * gap_s + 1, plan(SKIPPED)))
    assert [fold for *_, fold in folds(messages)] == [1, 1, 3]


def test_candidates_that_were_left_out_have_a_run_for_each_code():
    left = plan(left_out=(("node_silent", 2), ("outranked", 5)))
    assert [fold for *_, fold in folds(ledger_of((0, left), (1, left)))] == [1, 1, 1, 1]


def test_runs_are_the_same_in_one_batch_in_many_and_after_a_restart_from_the_rows():
    decisions: list[Decision] = [
        plan(SKIPPED),
        plan(SKIPPED, OTHER),
        granted(),
        plan(verdict()),
        plan(SKIPPED),
        plan(OTHER),
    ]
    messages = ledger_of(*((number, decision) for number, decision in enumerate(decisions * 3)))
    at_once, runs = rows_of(messages)
    pieces: list[dict[str, object]] = []
    state: Runs = {}
    for message in messages:
        rows, state = rows_of([message], state)
        pieces += rows
    assert [row["fold_id"] for row in pieces] == [row["fold_id"] for row in at_once]
    assert state == runs
    newest_first = sorted(at_once, key=lambda row: (row["seq"], row["item"]), reverse=True)
    assert runs_of([{name: row[name] for name in (*FOLDED_BY, "fold_id", "at_ns")} for row in newest_first]) == runs


def test_what_is_remembered_does_not_grow_with_what_is_over():
    verdicts = (verdict(helper=f"n{number}", outcome="skipped", code="outranked") for number in range(2, 200))
    messages = ledger_of(*((number * 60, plan(one)) for number, one in enumerate(verdicts)))
    assert len(rows_of(messages)[1]) == GAP_NS // (60 * SECOND_NS) + 1
