"""`leaseway plan`: what is taken from a history or a trace, how it is cut, what is answered, and how far to trust it."""

import json
from itertools import pairwise
from typing import Any

import pytest

from domain.errors import BadConfigError
from services.cli.main import main
from services.simulator import plan_parts
from services.simulator.drivers import OURS
from services.simulator.plan import answer, calibration, sentence
from services.simulator.plan_parts import Candidate, parts, scenario_of, stretches
from services.simulator.plan_report import plan_report
from services.simulator.plan_run import ALONE, STAND_IN, Figures, run_plan
from services.simulator.plan_traffic import (
    Costs,
    Request,
    Traffic,
    fit,
    of_history,
    of_trace,
    own_fit,
    speed_of,
)
from services.simulator.product.driver import ProductDriver

TWICE = Candidate(speed=2.0)


def burst(jobs: int, at_s: float = 0.0, *, service_s: float = 10.0) -> list[Request]:
    return [Request(at_s, service_s, service_s) for _ in range(jobs)]


def as_it_happened(requests: list[Request]) -> list[Request]:
    """Return the requests with the latencies that the owner alone gives them, first come first served."""
    free_s, found = 0.0, []
    for request in requests:
        free_s = max(free_s, request.at_s) + request.service_s
        found.append(request._replace(lived_s=free_s - request.at_s))
    return found


def row(at_s: float, service_s: float, work: int, **changed: Any) -> dict[str, Any]:
    """Return a row of `requests` that ended at `at_s`."""
    stated = {"at_ns": int(at_s * 1e9), "wait_us": 2_000_000, "service_us": int(service_s * 1e6), "work": work}
    return {**stated, "outcome": "finished", "helper": "", "owner": "studio", "model": "chat", **changed}


def test_a_fit_finds_what_a_request_and_a_unit_of_work_take_and_neither_is_negative():
    line = fit([(x, 2.0 + 0.5 * x) for x in (1, 5, 9, 30)])
    assert (line.base_s, line.per_unit_s) == pytest.approx((2.0, 0.5))
    assert fit([(1, 9.0), (9, 1.0)]).per_unit_s == 0
    through_zero = fit([(10, 1.0), (20, 5.0), (30, 9.0)])
    assert through_zero.base_s == 0
    assert through_zero.per_unit_s > 0


def test_a_history_says_when_each_request_came_and_puts_what_was_lent_at_the_owners_own_price():
    rows = [row(100 + 10 * number, 4.0 + number, 10 + 10 * number) for number in range(5)]
    rows.append(row(200, 1.0, 30, helper="attic"))
    rows.append(row(300, 0.0, 30, outcome="rejected"))
    traffic = of_history(rows, "studio/chat")
    assert [request.at_s for request in traffic.requests] == pytest.approx([0, 9, 18, 27, 36, 103])
    assert [request.service_s for request in traffic.requests] == pytest.approx([4, 5, 6, 7, 8, 6])
    assert [request.lent for request in traffic.requests] == [False] * 5 + [True]
    assert traffic.requests[-1].lived_s == pytest.approx(3.0)
    assert (traffic.left_out, traffic.together_max) == (1, 1)


def test_an_owner_that_served_almost_nothing_itself_has_no_speed():
    rows = [row(number, 1.0, 5, helper="attic") for number in range(50)]
    with pytest.raises(BadConfigError, match=r"history of studio/chat: must have at least 5 requests .* has 0"):
        of_history(rows, "studio/chat")


def test_an_engine_that_serves_several_at_once_is_noticed():
    rows = [row(100 + 0.1 * number, 10.0, 5) for number in range(8)]
    assert of_history(rows, "studio/chat").together_max == 8


def test_the_speed_of_a_node_is_measured_in_the_owners_own():
    own = own_fit([row(number, 2.0 * number, number) for number in range(1, 9)], "studio/chat")
    quick = [row(number, 0.5 * number, number, helper="attic") for number in range(1, 9)]
    assert speed_of(quick, own, "attic") == pytest.approx(4.0)
    with pytest.raises(BadConfigError, match="--like attic: must have served at least 5"):
        speed_of(quick[:4], own, "attic")


def test_a_traces_rows_cost_their_measured_seconds_whose_size_nobody_knew_or_what_their_tokens_take():
    rows = [{"t_s": "5", "service_s": "3", "in_tok": "900", "out_tok": "30", "model": "chat"}] * 2
    rows += [{"t_s": "1", "service_s": "9", "in_tok": "90", "out_tok": "60", "model": "code"}]
    measured = of_trace(rows, Costs(seconds_column="service_s"), "x.csv", {})
    assert [(request.at_s, request.service_s, request.expected_s) for request in measured.requests] == [
        (0, 9, 5),
        (4, 3, 5),
        (4, 3, 5),
    ]
    told = of_trace(rows, Costs(read_per_s=900, write_per_s=30), "x.csv", {"model": "code"})
    assert [(request.service_s, request.expected_s) for request in told.requests] == [(2.1, 2.1)]
    with pytest.raises(BadConfigError, match=r"trace x\.csv: must have a row that fits --where, has 3 rows"):
        of_trace(rows, Costs(seconds_column="service_s"), "x.csv", {"model": "none"})
    with pytest.raises(BadConfigError, match=r"trace x\.csv: must have a column seconds"):
        of_trace(rows, Costs(seconds_column="seconds"), "x.csv", {})


def test_traffic_is_cut_only_where_the_owner_alone_had_been_quiet_for_longer_than_anything_takes():
    requests = [*burst(5), *burst(2, at_s=100), *burst(3, at_s=1000)]
    found = stretches(requests, TWICE)
    assert [(one.first, one.end) for one in found] == [(0, 7), (7, 10)]
    for before, after in pairwise(found):
        assert before.end == after.first
    assert len(stretches(requests, Candidate(speed=2, load_s=600))) == 1
    assert [(one.first, one.end) for one in parts(found, TWICE)] == [(0, 10)], "small ones are one task"


def figures_in(
    monkeypatch: pytest.MonkeyPatch, candidate: Candidate, *, requests_per_part: int
) -> tuple[Figures, Figures]:
    requests = [request for begin in range(4) for request in burst(12 + begin, at_s=4000.0 * begin)]
    monkeypatch.setattr(plan_parts, "REQUESTS_PER_PART", requests_per_part)
    monkeypatch.setattr(plan_parts, "SWITCHES_PER_PART", 1)
    runs = run_plan(requests, candidate, jobs=1, curves=False)
    return runs.alone.figures(), runs.helped.figures()


def test_traffic_in_parts_gives_the_figures_of_the_same_traffic_as_a_whole(monkeypatch):
    whole = figures_in(monkeypatch, TWICE, requests_per_part=10_000)
    cut = figures_in(monkeypatch, TWICE, requests_per_part=1)
    for one, other in zip(whole, cut, strict=True):
        assert one.mean_s == pytest.approx(other.mean_s, rel=0.02)
        assert one.p99_s == pytest.approx(other.p99_s, rel=0.05)
        assert one.longest_backlog_s == pytest.approx(other.longest_backlog_s, rel=0.05)


def test_a_part_costs_a_machine_that_has_to_load_at_most_one_load_too_many(monkeypatch):
    cold = Candidate(speed=1.5, load_s=15)
    _, whole = figures_in(monkeypatch, cold, requests_per_part=10_000)
    _, cut = figures_in(monkeypatch, cold, requests_per_part=1)
    assert 1 <= whole.loads <= cut.loads <= whole.loads + 3 * 2, "the load there, and the one back"


def test_a_faster_machine_takes_its_share_of_a_burst_and_alone_is_first_come_first_served():
    requests = burst(30)
    runs = run_plan(requests, TWICE, jobs=1, curves=True)
    alone, helped = runs.alone.figures(), runs.helped.figures()
    assert alone.mean_s == pytest.approx(155, abs=1)
    assert alone.longest_backlog_s == pytest.approx(300, abs=1)
    assert (alone.lent_share, alone.loads) == (0, 0)
    assert 0.5 < helped.lent_share < 0.75
    assert helped.longest_backlog_s < 120
    said = answer("0", Traffic(about="x", requests=tuple(requests)), TWICE, runs)
    assert said.sentence.startswith("A second machine of 2 times the speed would have taken ")
    assert "instead of 5 min" in said.sentence
    page = plan_report(said, runs)
    assert said.sentence in page
    assert page.count("<svg") == 2
    assert "<script" not in page
    assert "http" not in page


def test_a_machine_that_would_have_to_load_for_longer_than_the_backlog_lasts_brings_little():
    requests = [request for begin in range(5) for request in burst(2, at_s=1000.0 * begin)]
    slow = Candidate(speed=1, load_s=120)
    runs = run_plan(requests, slow, jobs=1, curves=False)
    said = answer("0", Traffic(about="x", requests=tuple(requests)), slow, runs)
    assert said.helped.lent_share == 0
    assert "would have brought little" in said.sentence


def test_a_worse_machine_is_called_worse():
    best = Figures(
        policy="none",
        mean_s=10,
        p50_s=9,
        p99_s=20,
        wait_mean_s=1,
        wait_p99_s=3,
        longest_backlog_s=9000,
        lent_share=0,
        loads=0,
        load_s=0,
    )
    worse = Figures(**{name: getattr(best, name) for name in best.__struct_fields__} | {"mean_s": 12.0})
    assert sentence(TWICE, best, worse).startswith("A second machine of 2 times the speed would have made it worse: ")
    assert "longest backlog 2.5 h" in sentence(Candidate(speed=1, like="attic"), best, worse)


def test_the_simulation_of_what_happened_is_checked_where_nothing_was_lent():
    first, second = as_it_happened(burst(10)), as_it_happened(burst(6, at_s=2000))
    second[2] = second[2]._replace(lent=True, lived_s=1.0)
    requests = [*first, *second]
    checked = calibration(requests, run_plan(requests, TWICE, jobs=1, curves=False))
    assert checked is not None
    assert checked.requests == 10, "the burst that was lent from says nothing about the owner alone"
    assert abs(checked.mean_error) < 0.01


def test_a_node_that_was_slower_than_its_service_times_say_shows_in_the_calibration():
    requests = [request._replace(lived_s=2 * request.lived_s) for request in as_it_happened(burst(10))]
    checked = calibration(requests, run_plan(requests, TWICE, jobs=1, curves=False))
    assert checked is not None
    assert checked.mean_error == pytest.approx(-0.5, abs=0.01)
    assert checked.p99_error == pytest.approx(-0.5, abs=0.01)


def test_what_the_answer_leaves_out_is_said():
    requests = as_it_happened(burst(10))
    requests[3] = requests[3]._replace(lent=True)
    traffic = Traffic(about="x", requests=tuple(requests), left_out=4, together_max=3)
    said = answer("0", traffic, TWICE, run_plan(requests, TWICE, jobs=1, curves=False))
    assert said.calibration is None
    notes = " / ".join(said.notes)
    assert "4 requests were never served" in notes
    assert "10% of the requests were lent to helpers already" in notes
    assert "up to 3 requests at once" in notes
    assert "not calibrated: something was lent in every busy time" in notes


def test_where_the_products_own_rule_refuses_another_stands_in_and_says_so(monkeypatch):
    requests = burst(8)
    monkeypatch.setattr(ProductDriver, "refuses", lambda _self, _scenario: "needs a spoon")
    runs = run_plan(requests, TWICE, jobs=1, curves=False)
    assert (runs.alone.policy, runs.helped.policy) == (ALONE, STAND_IN)
    said = answer("0", Traffic(about="x", requests=tuple(requests)), TWICE, runs)
    assert "the product's own rule does not run this yet (needs a spoon): water stands in for it" in said.notes


def test_sizes_are_around_one_and_a_machine_with_the_model_in_never_switches():
    requests = [Request(7.0, 30.0, 20.0), Request(9.0, 10.0, 20.0)]
    warm = scenario_of(requests, TWICE, unit_s=20.0, name="x")
    assert [(one.at_s, one.size, one.noise) for one in warm.arrivals] == [(0, 1.0, 1.5), (2, 1.0, 0.5)]
    assert (warm.one_model, warm.loaded) == (True, (0, 0))
    cold = scenario_of(requests, Candidate(speed=2, load_s=9), unit_s=20.0, name="x")
    assert (cold.one_model, cold.loaded, cold.load_s[1]) == (False, (0, 1), 9)


def test_a_trace_on_the_command_line_gives_the_table_the_sentence_and_both_files(tmp_path, capsys):
    lines = [f"{600 * (number // 10)},{5 + number % 3}" for number in range(60)]
    (tmp_path / "week.csv").write_text("\n".join(["t_s,service_s", *lines]) + "\n")
    out, page = tmp_path / "plan.json", tmp_path / "plan.html"
    arguments = ["plan", "--trace", str(tmp_path / "week.csv"), "--helper-speed", "2", "--jobs", "1"]
    assert main([*arguments, "--json", str(out), "--html", str(page)]) == 0
    said = capsys.readouterr().out
    figures = json.loads(out.read_text())
    assert "60 requests of trace week.csv in 3000 s" in said
    assert figures["sentence"] in " ".join(said.split())
    assert figures["helped"]["policy"] in {OURS, STAND_IN}
    assert figures["helped"]["mean_s"] < figures["alone"]["mean_s"]
    assert figures["calibration"] is None
    assert "not calibrated: a trace does not say how long requests took in all" in figures["notes"]
    assert figures["sentence"] in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "say either --from-history or --trace"),
        (("--trace", "x.csv"), "say either --helper-speed or --like"),
        (("--trace", "x.csv", "--like", "attic"), "--like needs --from-history"),
        (("--trace", "x.csv", "--helper-speed", "2", "--load-s", "9"), "--load-s needs --load-if-unloaded"),
        (("--trace", "x.csv", "--helper-speed", "2", "--load-if-unloaded"), "--load-if-unloaded needs --load-s"),
        (("--trace", "x.csv", "--helper-speed", "2", "--read-per-s", "9"), "must be given together"),
        (("--from-history", "7d", "--helper-speed", "2", "--where", "a=b"), "are about a --trace"),
        (("--from-history", "soon", "--helper-speed", "2"), "or now, got 'soon'"),
        (("--trace", "x.csv", "--helper-speed", "0"), "must be a number above 0, got '0'"),
        (("--trace", "no-such.csv", "--helper-speed", "2"), "trace no-such.csv: is neither in "),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_line(capsys, arguments, complaint):
    assert main(["plan", *arguments]) == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert err.count("\n") == 1
