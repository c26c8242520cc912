"""Delays of the control path, read from facts."""

from typing import Any

from tests.real.control_path import control_path


def _fact(kind: str, at_ms: float, **data: Any) -> dict[str, Any]:
    return {"type": kind, "mono_us": int(at_ms * 1000), "data": data}


def test_delays_are_medians_over_requests_and_loads_and_waits_are_none_of_them():
    facts = [
        _fact("queue.held", 10, request="a"),
        _fact("queue.held", 11, request="b"),
        _fact("lend.lent", 25, request="a"),
        _fact("borrow.accepted", 27, request="a", position=0),
        _fact("borrow.started", 3027, request="a", load_us=3_000_000),
        _fact("lend.lent", 3030, request="b"),
        _fact("borrow.accepted", 3034, request="b", position=0),
        _fact("borrow.started", 3035, request="b", load_us=0),
        _fact("borrow.accepted", 3036, request="c", position=1),
        _fact("borrow.started", 4000, request="c", load_us=0),
        _fact("borrow.finished", 4030, request="b"),
        _fact("lend.answered", 4032, request="b"),
    ]
    path = control_path(facts)
    assert (path.first_lease_ms, path.lend_ms, path.start_ms, path.answer_ms) == (15, 3, 1, 2)


def test_a_run_without_lending_has_no_delays():
    path = control_path([_fact("queue.held", 10, request="a")])
    assert (path.first_lease_ms, path.lend_ms, path.start_ms, path.answer_ms) == (0, 0, 0, 0)
