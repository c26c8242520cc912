"""Telemetry as a person reads it: time that was lost has its sign, and what nobody knows does not fill the table."""

from typing import Any

import pytest

from projections.idle import idle_steps
from services.cli.show import Output
from services.cli.telemetry import print_table
from services.texts import idle

T = 1_796_000_400


def step(
    number: int, state: str, *, node: str = "n1", model: str = "m", why: str = "", served_us: int = 0
) -> dict[str, Any]:
    return {"t": T + 60 * number, "node": node, "model": model, "state": state, "why": why, "served_us": served_us}


def test_steps_that_are_alike_are_one_row_and_unknown_ones_are_none():
    states = ("unknown", "unknown", "busy", "busy", "idle", "unknown", "idle", "busy")
    rows = [step(number, state, served_us=5 if state == "busy" else 0) for number, state in enumerate(states)]
    told = [((row["t"] - T) // 60, row["state"], row["steps"], row["served_us"]) for row in idle.runs(rows)]
    assert told == [(2, "busy", 2, 10), (4, "idle", 1, 0), (6, "idle", 1, 0), (7, "busy", 1, 5)]


def test_of_what_nothing_is_known_a_line_says_how_much_and_why():
    whys = ("not_heard_of", "not_heard_of", "stale", "stopped", "")
    rows = [step(number, "unknown" if why else "idle", why=why) for number, why in enumerate(whys)]
    rows += [
        step(number, "unknown", node="n2", model=model, why="stopped") for number in range(5) for model in "abcdef"
    ]
    rows += [step(0, "busy", node="n3")]
    assert list(idle.unknown(rows)) == [
        (
            "n1/m: known of 1 of 5 steps; unknown because its node had not spoken yet, or longer ago than is kept (2); "
            "its node was stale (1); its node had stopped (1)"
        ),
        "n2/a, n2/b, n2/c, n2/d and 2 more: known of 0 of 5 steps; unknown because its node had stopped (5)",
    ]


def printed(
    capsys: pytest.CaptureFixture[str], question: str, rows: list[dict[str, Any]], *, whole: bool = False
) -> str:
    out = Output(as_json=False)
    out.as_json = False  # though nobody is at a terminal
    print_table(out, question, {"step": 60, question: rows}, whole=whole)
    said = capsys.readouterr()
    return " ".join((said.out + said.err).split())


def saved(number: int, saved_us: int | None, *, counted_in: int | None = None) -> dict[str, Any]:
    figures = {"backlog": 8, "lent": 4, "home_us": 9_000_000, "planned_us": 5_000_000, "measured_us": 7_000_000}
    at = T + 60 * number
    counted = at if counted_in is None else T + 60 * counted_in
    return {"t": at, "owner": "n1", "model": "m", "saved_us": saved_us, "counted_in": counted} | figures


def test_time_that_was_lost_is_shown_below_zero_and_a_backlog_that_is_counted_elsewhere_only_if_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "200")
    rows = [saved(0, -12_000_000), saved(1, 2_000_000), saved(2, None, counted_in=1), saved(3, None)]
    text = printed(capsys, "savings", rows)
    assert "9 s 5 s 7 s -12 s" in text
    assert "saved -10 s over 2 backlogs that can be measured" in text
    assert (text.count(" n1 m "), printed(capsys, "savings", rows, whole=True).count(" n1 m ")) == (3, 4)


def test_whether_requests_were_lent_is_yes_or_no(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    row = {"t": T, "owner": "n1", "model": "m", "outcome": "finished"}
    text = printed(capsys, "requests", [row | {"lent": 0, "requests": 8}, row | {"lent": 1, "requests": 5}])
    assert "finished no 8" in text
    assert "finished yes 5" in text


def test_a_table_of_idleness_has_unknown_steps_only_if_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "200")
    rows = [step(number, "unknown", why="not_heard_of") for number in range(40)] + [step(40, "idle")]
    text = printed(capsys, "idle", rows)
    assert (text.count(" n1 m idle "), text.count(" n1 m unknown ")) == (1, 0)
    assert "n1/m: known of 1 of 41 steps" in text
    assert printed(capsys, "idle", rows, whole=True).count(" n1 m unknown ") == 40


def test_a_node_that_drains_goes_on_with_what_it_has_and_one_that_fell_silent_does_not():
    ns = 1_000_000_000
    words = [
        (0, "n1", True, ""),
        (60, "n1", False, "draining"),
        (0, "n2", True, ""),
        (60, "n2", False, "stale"),
        (120, "n2", True, ""),
    ]
    rows = idle_steps(
        0,
        180,
        60,
        [],
        [{"node": node, "at_ns": at * ns, "good": good, "why": why} for at, node, good, why in words],
        [{"node": node, "model": "m", "from_ns": 30 * ns, "to_ns": 0} for node in ("n1", "n2")],
    )
    told = {
        node: [(r["state"], r["served_us"] // 1_000_000) for r in rows if r["node"] == node] for node in ("n1", "n2")
    }
    assert told == {
        "n1": [("busy", 30), ("busy", 60), ("busy", 60)],
        "n2": [("busy", 30), ("unknown", 0), ("busy", 60)],
    }


def test_the_first_and_last_step_hold_only_what_lies_in_the_window():
    ns = 1_000_000_000
    words = [{"node": "n1", "at_ns": 20 * ns, "good": True, "why": ""}]
    served = [{"node": "n1", "model": "m", "from_ns": 0, "to_ns": 200 * ns}]
    rows = idle_steps(45, 130, 60, [], words, served)
    assert [(row["t"], row["served_us"] // 1_000_000) for row in rows] == [(0, 15), (60, 60), (120, 10)]
