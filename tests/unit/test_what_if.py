"""What-if: the same facts decided again, and the same arrivals run on, under other settings and links."""

import asyncio
import dataclasses

import msgspec
import pytest

from adapters.log.history import Streams
from adapters.log.reader import Reader
from adapters.times import Moment
from domain.errors import BadConfigError, BadLinkError
from domain.events import ControlEvent, LinkAdded, NodeRetired
from domain.ids import ModelId, NodeId
from domain.master.control import fold_control
from domain.master.inputs import ControlInput
from domain.master.registration import forget
from domain.master.state import decode_state, encode_state
from services.cli.what_if import _print
from services.cli.what_if_history import read
from services.simulator.model.scenario import Arrival
from services.simulator.product.names import link_of
from services.simulator.whatif.answer import FITS, RECORDED, Answer, what_if
from services.simulator.whatif.changes import Changes
from services.simulator.whatif.figures import ALL, Figures
from services.simulator.whatif.recorded import Recorded
from services.simulator.whatif.redecide import redecide
from services.simulator.whatif.report import decided, remarks, rows, what_if_report
from services.simulator.whatif.times import GUESSED, SCALED, UNPRICED
from services.simulator.whatif.words import told
from tests.support.facts import plan, verdict
from tests.support.history import CLUSTER, SECRET, START_NS
from tests.support.stored_scenario import GAP_S, burst, stored, twice

NEIGHBOUR, FASTER = link_of(0, 1, 0), link_of(0, 2, 0)
BEFORE = Moment(at_ns=START_NS - 10 * 10**9)


def recorded(streams: Streams, since: Moment | None = BEFORE, until: Moment | None = None) -> Recorded:
    return asyncio.run(read(streams, Reader(CLUSTER, SECRET), CLUSTER, since, until, lambda _: None))


@pytest.fixture(scope="module")
def history() -> Streams:
    """A burst that was shared with an equal neighbour; a third node, three times as fast, was in no link."""
    return stored(burst(noise=0.2))


@pytest.fixture(scope="module")
def one(history: Streams) -> Recorded:
    return recorded(history)


def drain_s(answer: Answer, ground: str, *, changed: bool) -> float:
    columns = answer.changed if changed else answer.unchanged
    return next(column.figures[ALL].drain_s for column in columns if column.ground == ground)


# -- decided again


def test_nothing_changed_decides_the_same_everywhere(one: Recorded):
    again = redecide(one, Changes())
    assert again.commits > 10
    assert again.differing == 0
    assert again.first is None
    assert all(count.then == count.now for count in (*again.kinds, *again.links))
    assert any(count.what == "granted" and count.then for count in again.links)


def test_a_link_left_out_takes_away_its_leases_and_no_other(history: Streams):
    both = recorded(stored(burst(helpers=(1, 2))))
    again = redecide(both, Changes(removed=(NEIGHBOUR,)))
    granted = {count.link: (count.then, count.now) for count in again.links if count.what == "granted"}
    gone, kept = granted["n00/m00 -> n01/m00"], granted["n00/m00 -> n02/m00"]
    assert gone[0] > 0
    assert gone[1] == 0
    assert kept[1] >= kept[0] > 0


def test_the_first_difference_is_told_with_both_sides_and_their_reasons(one: Recorded):
    first = redecide(one, Changes(removed=(NEIGHBOUR,), added=(FASTER,))).first
    assert first is not None
    assert any(line.startswith("n00/m00 -> n01/m00: granted") and "(pays)" in line for line in first.then)
    assert any(line.startswith("n00/m00 -> n02/m00: granted") and "(pays)" in line for line in first.now)
    assert not any("n02" in line for line in first.then)


def test_another_setting_changes_what_it_is_about_and_nothing_before(one: Recorded):
    again = redecide(one, Changes(settings={"scheduling_backend_depth": 1}))
    assert again.first is not None
    assert any("1 slot," in line for line in again.first.now)
    assert any("2 slots," in line for line in again.first.then)
    irrelevant = redecide(one, Changes(settings={"offload_decisions_retention": 86_400_000_000}))
    assert irrelevant.differing == 0


def test_control_events_of_the_range_that_the_changes_overrule_are_not_heard():
    changes = Changes(removed=(NEIGHBOUR,), settings={"offload_lease_ttl": 5_000_000})
    assert changes.heard(NEIGHBOUR) is None
    assert changes.heard(FASTER) is FASTER
    assert Changes(lends=False).heard(FASTER) is None


# -- run on


def test_the_run_on_of_what_was_tells_what_happened(one: Recorded):
    answer = what_if(one, Changes())
    assert answer.changed == ()
    assert drain_s(answer, RECORDED, changed=False) == pytest.approx(answer.happened[ALL].drain_s, rel=0.01)
    assert drain_s(answer, FITS, changed=False) == pytest.approx(answer.happened[ALL].drain_s, rel=0.05)
    assert answer.happened[ALL].requests == 30
    assert 0.4 < answer.happened[ALL].lent < 0.6


def test_without_its_link_a_burst_takes_its_owner_as_long_as_alone(one: Recorded):
    answer = what_if(one, Changes(removed=(NEIGHBOUR,)))
    whole_s = sum(asked.service_us for asked in one.asked) / 1e6
    for ground in (FITS, RECORDED):
        assert drain_s(answer, ground, changed=True) == pytest.approx(whole_s, rel=0.03)
    assert drain_s(answer, RECORDED, changed=True) > 1.8 * drain_s(answer, RECORDED, changed=False)
    assert all(column.figures[ALL].lent == 0 for column in answer.changed)


def test_no_policy_lends_nothing_and_is_the_same_as_no_link(one: Recorded):
    none, unlinked = what_if(one, Changes(lends=False)), what_if(one, Changes(removed=(NEIGHBOUR,)))
    assert [column.figures for column in none.changed] == [column.figures for column in unlinked.changed]
    assert none.redecided.differing == unlinked.redecided.differing


def test_a_link_to_an_idle_faster_helper_drains_sooner(one: Recorded):
    answer = what_if(one, Changes(added=(FASTER,)))
    for ground in (FITS, RECORDED):
        assert drain_s(answer, ground, changed=True) < 0.7 * drain_s(answer, ground, changed=False)


def test_a_request_that_runs_elsewhere_takes_its_recorded_time_by_the_ratio_of_the_fits(one: Recorded):
    answer = what_if(one, Changes(removed=(NEIGHBOUR,), added=(FASTER,)))
    by_record = answer.changed[1]
    assert by_record.sources[SCALED] > 15
    # at three times the speed beside the owner's own: a quarter of the time for one node
    whole_s = sum(asked.service_us for asked in one.asked) / 1e6
    assert drain_s(answer, RECORDED, changed=True) == pytest.approx(whole_s / 4, rel=0.12)


def test_a_helper_that_must_load_costs_loading_by_the_owner_that_it_helps():
    switching = dataclasses.replace(
        burst(40), speeds=(1.0, 2.0), loaded=(0, 1), load_s=(5.0, 5.0), unit_s=(2.0, 2.0), one_model=False
    )
    loaded = recorded(stored(switching))
    answer = what_if(loaded, Changes())
    assert answer.happened["n00/m00"].load_s == pytest.approx(5.0)
    for column in answer.unchanged:
        assert column.figures["n00/m00"].load_s == pytest.approx(answer.happened["n00/m00"].load_s)
    gone = what_if(loaded, Changes(lends=False))
    assert all(column.figures[ALL].load_s == 0 for column in gone.changed)


def test_helpers_own_requests_come_back_to_them_when_nothing_is_lent():
    own = tuple(Arrival(at_s, 1, 1.0, 1.0, native=True) for at_s in (3.0, 9.0, 15.0))
    shared = burst(20)
    two = dataclasses.replace(shared, arrivals=tuple(sorted((*shared.arrivals, *own))))
    answer = what_if(recorded(stored(two)), Changes(lends=False))
    assert list(answer.happened) == ["n00/m00", "n01/m00", ALL]
    alone: Figures = answer.changed[1].figures["n01/m00"]
    assert alone.requests == 3
    assert alone.mean_s == pytest.approx(2.0, rel=0.05)
    assert alone.mean_s < answer.happened["n01/m00"].mean_s


@pytest.mark.parametrize("policy", ["water", "steal"])
def test_a_policy_of_the_model_shares_the_burst_too_and_decides_nothing_again(one: Recorded, policy: str):
    answer = what_if(one, Changes(policy=policy, added=(FASTER,)))
    mine = what_if(one, Changes(added=(FASTER,)))
    for theirs, ours in zip(answer.changed, mine.changed, strict=True):
        assert theirs.figures[ALL].drain_s == pytest.approx(ours.figures[ALL].drain_s, rel=0.2)
        assert theirs.figures[ALL].drain_s != ours.figures[ALL].drain_s
    assert any(f"policy {policy} is run on by the simulator's model" in note for note in answer.notes)
    assert next(decided(answer)).startswith(
        f"Decided again by the product's own rules (policy {policy} is only run on): "
    )


@pytest.fixture(scope="module")
def wide() -> Recorded:
    """Ten requests of two seconds each at an owner whose engine serves two at once."""
    later = recorded(stored(twice(burst(10))), Moment(ago_ns=30 * 10**9))
    state = decode_state(later.state)
    known = state.nodes[NodeId("n00")].models
    known[ModelId("m00")] = msgspec.structs.replace(known[ModelId("m00")], slots=2)
    return msgspec.structs.replace(later, state=encode_state(state))


def test_an_engine_serves_as_many_at_once_as_it_has_slots(wide: Recorded):
    alone = what_if(wide, Changes(lends=False)).changed[1].figures[ALL]
    assert alone.drain_s == pytest.approx(10 * 2 / 2, rel=0.02)


def test_a_policy_of_the_model_is_refused_where_the_model_has_no_words_for_what_was(wide: Recorded):
    with pytest.raises(BadConfigError, match="water: the simulator's model serves one request at a time; n00 has more"):
        what_if(wide, Changes(policy="water"))


def test_a_policy_of_the_model_lends_over_no_link_whose_helper_was_retired_or_never_came():
    later = recorded(stored(twice(burst(10, helpers=(1, 2)))), Moment(ago_ns=30 * 10**9))
    state = decode_state(later.state)
    fold_control(state, ControlInput(state.chi, NodeRetired(node=NodeId("n02"))))
    forget(state, NodeId("n02"))
    fold_control(state, ControlInput(state.chi, link_of(0, 9, 0)))
    gone = msgspec.structs.replace(later, state=encode_state(state))
    by_water = what_if(gone, Changes(policy="water")).changed[0].figures[ALL]
    without = what_if(later, Changes(policy="water", removed=(FASTER,))).changed[0].figures[ALL]
    assert by_water.drain_s == pytest.approx(without.drain_s)


def test_a_model_policy_loads_where_the_product_had_to():
    switching = dataclasses.replace(
        burst(40), speeds=(1.0, 2.0), loaded=(0, 1), load_s=(5.0, 5.0), unit_s=(2.0, 2.0), one_model=False
    )
    answer = what_if(recorded(stored(switching)), Changes(policy="water"))
    for column in answer.changed:
        assert column.figures[ALL].load_s == pytest.approx(5.0)
        assert column.figures[ALL].drain_s == pytest.approx(answer.happened[ALL].drain_s, rel=0.05)


def test_a_range_begins_with_a_busy_time_and_ends_where_it_is_told():
    two = stored(twice(burst(10)))
    in_the_first = Moment(at_ns=START_NS + 3 * 10**9)
    whole, first = recorded(two, in_the_first), recorded(two, in_the_first, Moment(at_ns=START_NS + 50 * 10**9))
    second = recorded(two, Moment(ago_ns=30 * 10**9))
    assert [len(each.asked) for each in (whole, first, second)] == [20, 10, 10]
    assert whole.begin_us == START_NS // 1000
    assert second.begin_us == START_NS // 1000 + round(GAP_S * 1e6)
    assert second.version > first.version
    assert redecide(second, Changes()).differing == 0
    assert first.steps[-1].commit.version < second.steps[0].commit.version + 1


def test_the_same_inputs_give_the_same_answer(history: Streams, one: Recorded):
    changes = Changes(removed=(NEIGHBOUR,), added=(FASTER,))
    first, again = what_if(one, changes), what_if(recorded(history), changes)
    assert msgspec.json.encode(first) == msgspec.json.encode(again)


def test_runs_that_varied_are_drawn_several_times_and_those_that_did_not_once(one: Recorded):
    assert what_if(one, Changes()).unchanged[0].draws == 1
    second = recorded(stored(twice(burst(10, noise=0.2))), Moment(ago_ns=30 * 10**9))
    by_fits = what_if(second, Changes()).unchanged[0]
    least_s, most_s = by_fits.drain_s
    assert by_fits.draws == 9
    assert least_s < by_fits.figures[ALL].drain_s < most_s


def test_a_prediction_that_no_fit_stands_behind_does_not_pass_for_a_tested_one(one: Recorded):
    answer = what_if(one, Changes())
    assert not any("says little" in line for line in calibration(answer))
    by_fits, by_times = (
        msgspec.structs.replace(column, sources={UNPRICED: 2, GUESSED: 1, "its own fit": 1})
        for column in answer.unchanged
    )
    first, second = calibration(msgspec.structs.replace(answer, unchanged=(by_fits, by_times)))
    untested = (
        "this says little of the fits: 75% of its service times were taken from what happened, since no fit priced them"
    )
    assert first.endswith(untested)
    assert "says little" not in second


def calibration(answer: Answer) -> list[str]:
    return [remark for remark in remarks(answer) if remark.startswith("calibration")]


def test_a_candidate_without_a_price_is_told_without_one():
    unpriced = msgspec.structs.replace(verdict(), job_us=0, first_answer_us=20_000)
    [_, line] = told(plan(unpriced), (), {})
    assert "first answer" not in line
    [_, line] = told(plan(verdict()), (), {})
    assert "first answer" in line


def test_the_report_shows_every_row_and_no_script(one: Recorded):
    answer = what_if(one, Changes(removed=(NEIGHBOUR,)))
    page = what_if_report(answer, "1")
    assert all(cell in page for row in rows(answer) for cell in row)
    assert "n00/m00 -&gt; n01/m00: granted" in page
    assert "<script" not in page


def test_a_model_is_printed_by_its_name_whatever_that_would_say_to_a_terminal(
    one: Recorded, capsys: pytest.CaptureFixture[str]
):
    answer = what_if(one, Changes())
    happened = {"n00/qwen[fp8][/x]\x1b[2J": answer.happened[ALL], **answer.happened}
    _print(msgspec.structs.replace(answer, happened=happened))
    assert "n00/qwen[fp8][/x]?[2J" in capsys.readouterr().out


# -- what happens in the range


def with_control(one: Recorded, at_s: float, event: ControlEvent) -> Recorded:
    first = one.steps[0]
    later = (one.begin_us + round(at_s * 1e6), ControlInput(99, event))
    steps = [msgspec.structs.replace(first, control=[*first.control, later]), *one.steps[1:]]
    return msgspec.structs.replace(one, steps=steps)


def test_a_link_that_was_made_in_the_range_is_made_then_in_the_run_on(one: Recorded):
    made = what_if(with_control(one, 10, FASTER), Changes())
    before, from_the_first = what_if(one, Changes()), what_if(one, Changes(added=(FASTER,)))
    least_s, most_s = drain_s(from_the_first, RECORDED, changed=True), drain_s(before, RECORDED, changed=False)
    assert least_s + 3 < drain_s(made, RECORDED, changed=False) < most_s - 3


def test_a_link_that_was_made_in_the_range_is_not_where_the_changes_leave_it_out(one: Recorded):
    without = what_if(with_control(one, 10, FASTER), Changes(removed=(FASTER,)))
    assert without.changed[1].figures == what_if(one, Changes()).unchanged[1].figures


def test_a_client_that_left_leaves_again_after_the_same_time(one: Recorded):
    last = one.asked[-1]
    gone = msgspec.structs.replace(last, gone=True, ended_us=last.at_us + 5_000_000, service_us=0)
    answer = what_if(msgspec.structs.replace(one, asked=[*one.asked[:-1], gone]), Changes(lends=False))
    alone = what_if(one, Changes(lends=False))
    saved_s = drain_s(alone, FITS, changed=True) - drain_s(answer, FITS, changed=True)
    assert saved_s == pytest.approx(2.0, rel=0.05)
    assert answer.happened[ALL].requests == answer.changed[0].figures[ALL].requests == 29


# -- what cannot be asked


def _strange(owner: str = "n00", model: str = "m00", helper: str = "n01") -> LinkAdded:
    return msgspec.structs.replace(
        NEIGHBOUR, owner=NodeId(owner), owner_model=ModelId(model), helper=NodeId(helper), link="x"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            Changes(removed=(FASTER,)),
            "--without-link n00/m00 -> n02/m00: there is no such link in that time; there are n00",
        ),
        (Changes(added=(_strange(helper="n07"),)), "helper n07/m00 is served by nobody; there are n00/m00, n01/m00"),
        (Changes(added=(_strange(model="chat"),)), "owner n00/chat is served by nobody"),
        (Changes(added=(NEIGHBOUR,), removed=(NEIGHBOUR,)), "with --link or --without-link, not with both"),
    ],
)
def test_a_name_that_there_is_not_is_said_with_those_that_there_are(one: Recorded, changes: Changes, said: str):
    with pytest.raises(BadLinkError, match=said.replace("(", r"\(")):
        what_if(one, changes)


@pytest.mark.parametrize(
    ("since", "said"),
    [
        (Moment(number=10**6), "version 1000000 is not in the ledger's newest generation, which has 1 to"),
        (
            Moment(at_ns=START_NS + 10**13),
            r"no request was served in that time; those that are stored came from 2026-.+Z to 2026-.+Z",
        ),
    ],
)
def test_a_time_that_history_does_not_hold_is_said(history: Streams, since: Moment, said: str):
    with pytest.raises(BadConfigError, match=said):
        recorded(history, since)
