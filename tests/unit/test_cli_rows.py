"""Rows as people read them: each kind has its sentence, with the numbers behind it, and nothing that a terminal would obey."""

import time
from typing import Any

import msgspec
import pytest

from domain.events import Input, LoadFailed, Registered
from domain.subjects import EVENTS, LEDGER
from projections import decision_log
from projections import loads as load_rows
from projections.project import Context, project
from projections.tables import column_names
from services.cli import decisions, events, loads
from services.cli.parser import build_parser
from services.cli.rows import printer
from services.cli.show import Output, cell, note
from services.texts.sentences import loaded, said
from services.texts.telemetry import time_of
from tests.support.facts import MODEL, OWNER, Ledger, Teller, lent, plan, verdict
from tests.support.kinds import DECISIONS, HELPERS, LOADS, OWNERS

CONTEXT = Context(router="test")


def rows_of(table: str, *facts: Input, node: str = OWNER) -> list[dict[str, Any]]:
    teller = Teller(node)
    messages = [teller.tells(fact, seq) for seq, fact in enumerate(facts, 1)]
    found = project(EVENTS, 1, messages, CONTEXT).rows[table]
    return [dict(zip(column_names(table), row, strict=True)) for row in found]


def decided(*made: Any) -> list[dict[str, Any]]:
    found = project(LEDGER, 1, [Ledger().commits(*made)], CONTEXT).rows["decisions"]
    return [dict(zip(column_names("decisions"), row, strict=True)) for row in found]


def everything() -> list[dict[str, Any]]:
    return [*decided(*DECISIONS), *rows_of("decisions", *OWNERS), *rows_of("decisions", *HELPERS, node="n2")]


def test_every_kind_of_the_decision_log_has_its_sentence():
    sentences = {row["kind"]: said(row) for row in everything()}
    assert set(sentences) == set(decision_log.KINDS)
    assert len(set(sentences.values())) == len(sentences)


def test_a_skipped_candidate_is_told_with_backlog_price_and_what_a_probe_waits_for():
    [row] = [row for row in everything() if row["kind"] == "plan"]
    assert said(row) == (
        "skipped helper_recently_busy: enqueued, 8 held, 7 lendable, 2 in the engine, alone 11 s, with leases 5.5 s; "
        "1 s a job (helper, 17 samples), 1.1 s at the owner, first answer in 2 s, ready in 4 s, switch 3 s, way back 9 s; "
        "saves 5 s of waiting; idle for 500 ms, a probe in 2.5 s"
    )


def test_a_plan_without_price_or_candidates_says_so():
    poor = msgspec.structs.replace(plan(), drain_us=-1, lent_drain_us=-1, owner_job_us=-1)
    assert said(decided(poor)[0]) == "none: enqueued, 8 held, 7 lendable, 2 in the engine, no price of its own"
    [left] = decided(plan(left_out=(("outranked", 5),)))
    assert said(left).startswith("left_out outranked: 5 candidates beyond the first; enqueued, 8 held")


def test_what_is_said_about_a_link_and_by_its_ends_names_the_numbers():
    sentences = {row["kind"]: said(row) for row in everything()}
    assert sentences["granted"].startswith("2 slots for 30 s; 1 s a job (helper), 2 s at the owner, ready in 750 ms")
    assert sentences["priced"] == "faster, 1 s against 2 s for the same work: the owner may wait for a decision"
    assert sentences["breaker"] == "opened after 3 failures without an answer: nothing goes there for 15 s"
    assert sentences["held_for_helper"] == (
        "kept for the helper: done here in 9 s (4 s a job), there in 5 s (1 s a job); waits for 1.2 s"
    )
    assert sentences["returned"] == "came back unstarted: own_work; 2 slots, 1 out; never lent again"
    assert sentences["native_waited_behind_borrowed"] == "its own request waited 4 s behind 2 borrowed in the engine"


def test_a_line_has_the_time_the_kind_both_ends_and_the_end_of_the_requests_id():
    line = decisions.line_of(rows_of("decisions", lent(0xABC))[0])
    assert line.endswith("lent            n1 > n2          lent after 1.5 ms: 0 slots, 1 out, work 64  [00000abc]")


def test_every_line_has_its_day_and_says_that_it_is_utc_wherever_the_reader_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        at_ns = 1_796_000_000_123_000_000
        for line_of, row in (
            (decisions.line_of, rows_of("decisions", lent(0xABC))[0]),
            (loads.line_of, rows_of("loads", *LOADS, node="n2")[0]),
            (events.line_of, events.row_of(Teller("n2").tells(LOADS[1], 7))),
        ):
            assert line_of(row | {"at_ns": at_ns}).startswith("2026-11-30T00:53:20.123Z ")
        assert time_of(at_ns // 10**9, 60) == "2026-11-30T00:53:20Z"
        assert time_of(1_795_996_800, 86_400) == "2026-11-30"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_where_there_are_no_rows_a_person_is_told_so_and_a_program_gets_nothing(capsys: pytest.CaptureFixture[str]):
    out = Output(as_json=True)
    printer(out, "decisions", decisions.line_of)([])
    assert capsys.readouterr().out == ""
    out.as_json = False
    printer(out, "decisions", decisions.line_of)([])
    assert capsys.readouterr().out == "decisions: none\n"
    printer(out, "decisions", decisions.line_of, {"owner": "nope", "kind": "plan"})([])
    assert capsys.readouterr().out == "decisions: none with --owner nope --kind plan\n"


def test_every_kind_of_load_has_its_sentence():
    rows = rows_of("loads", *LOADS, node="n2")
    assert {row["kind"] for row in rows} == set(load_rows.KINDS)
    assert [loaded(row) for row in rows][1:3] == [
        "loaded qwen/7b in 8 s in place of llama/8b (borrowed)",
        "could not load qwen/7b: no_memory (own)",
    ]
    assert len({loaded(row) for row in rows}) == len(rows)


def test_words_from_outside_cannot_steer_a_terminal():
    hostile = "\x1b[2J\r\n"
    [row] = rows_of("loads", LoadFailed(model=MODEL, cause="own", reason=hostile))
    assert "\x1b" not in loads.line_of(row)
    [row] = decided(plan(verdict(code=hostile)))
    assert decisions.line_of(row).isprintable()


def test_a_stored_fact_is_printed_with_durations_in_their_unit_and_without_what_it_does_not_say():
    message = Teller("n2").tells(LOADS[1], 7)
    line = events.line_of(events.row_of(message))
    assert line.endswith("model.loaded            model=qwen/7b load=8s cause=borrowed displaced=llama/8b")
    line = events.line_of(events.row_of(Teller("n2").tells(Registered(url="", models=(), version="1", depth=2), 8)))
    assert line.endswith("status.registered       version=1 depth=2")


def test_what_is_stored_in_small_units_is_told_in_those_that_people_take():
    [row] = [row for row in everything() if row["kind"] == "health"]
    assert said(row | {"outcome": "unhealthy", "reason": "silent for 3015060 us"}) == "unhealthy: silent for 3.02 s"
    assert "  request=" in events.line_of(events.row_of(Teller("n1").tells(lent(1), 7)))
    assert " work=64 " in events.line_of(events.row_of(Teller("n1").tells(lent(1), 7)))


def test_every_filter_of_the_decision_log_is_on_the_command_line():
    parsed = build_parser().parse_args(
        ["decisions", "--request", "r", "--link", "l", "--kind", "lent", "--reason", "x", "--outcome", "y"]
    )
    assert (parsed.request, parsed.link, parsed.kind, parsed.reason, parsed.outcome) == ("r", "l", "lent", "x", "y")


def test_a_folded_row_says_how_often_and_for_how_long():
    [row] = rows_of("decisions", lent(1))
    folded = row | {"rows": 17, "first_at_ns": row["at_ns"] - 180_000_000_000}
    assert decisions.line_of(folded).endswith("[00000001]  (17 times in 3 min)")
    assert "times" not in decisions.line_of(row | {"rows": 1, "first_at_ns": row["at_ns"]})


def test_a_name_from_outside_is_obeyed_by_no_terminal_in_a_table_or_a_note(capsys: pytest.CaptureFixture[str]):
    """A node's models and the pieces of somebody's copy are named by others."""
    assert cell("model", "a\x1b]0;mine\x07[b]") == "a?]0;mine?\\[b]"
    note("first\x1b[2J\nsecond")
    assert capsys.readouterr().err == "first?[2J\nsecond\n"
