"""Given models that share a runtime, when one is in, loading or driven out, then a switch has a price, its way back included."""

import msgspec
import pytest

from domain.events import (
    Accepting,
    BorrowAccepted,
    BorrowStarted,
    LeaseGranted,
    Lent,
    Loaded,
    LoadFailed,
    LoadStarted,
    NodeSnapshot,
    OwnerPlanned,
    RestoreCancelled,
    Restored,
    RuntimeState,
    Unloaded,
)
from domain.ids import NodeId, link_id
from domain.master import pricing
from domain.master.pricing import Switch
from domain.master.reasons import HELPER_CLAIMED
from domain.master.state import owner_key
from tests.support.history import borrow, finished, held, lend, link, started
from tests.support.stories import ON, K, L, M, Story, leases, verdict

B = NodeId("b")
COLD = link("a", "b", load_if_unloaded=True)
TWENTY_S = 20_000_000


def shared(*, resident=K, loads_us=None, links=(COLD,), nodes=("a", "b")) -> Story:
    """A helper whose models k and m share one runtime; it idles for long."""
    story = Story(*nodes, links=links)
    story.share("b", K, M, resident=resident, loads_us={K: TWENTY_S, M: TWENTY_S} if loads_us is None else loads_us)
    story.wait(600_000_000)
    return story


def room(story: Story):
    return story.master.state.nodes[B].rooms["=gpu"]


# ---- what is in ------------------------------------------------------------------------------------------------------


def test_when_one_model_of_a_runtime_is_loaded_the_others_are_not_ready():
    story = shared(resident=M)
    story.recorder.state("b", Loaded(model=K, load_us=TWENTY_S, cause="own", displaced=M))
    story.look()
    models = story.master.state.nodes[B].models
    assert (models[K].ready, models[M].ready) == (True, False)


def test_of_several_that_a_registration_calls_ready_the_first_is_in():
    story = Story()
    story.share("b", M, K, resident=M)
    story.recorder.restart("b")
    story.look()
    node = story.master.state.nodes[B]
    assert [model for model, info in node.models.items() if info.ready] == [M]
    assert room(story).models == [K, M]


def test_a_load_that_failed_leaves_the_runtime_empty():
    story = shared()
    story.recorder.state("b", LoadStarted(model=M, cause="borrowed"))
    story.recorder.state("b", LoadFailed(model=M, cause="borrowed", reason="exit 1"))
    decisions = story.burst(20)
    assert (room(story).resident, room(story).loading) == ("", "")
    assert verdict(decisions).switch_us == TWENTY_S


def test_a_run_of_borrowed_work_owes_what_was_in_before_the_run_and_nothing_between():
    story = Story()
    story.share("b", K, L, M, resident=K)
    for model in (L, M):
        story.recorder.state("b", LoadStarted(model=model, cause="borrowed"))
        story.recorder.state("b", Loaded(model=model, load_us=1, cause="borrowed"))
    story.look()
    assert (room(story).resident, room(story).displaced) == (M, K)
    story.recorder.state("b", LoadStarted(model=K, cause="restore"))
    story.recorder.state("b", Restored(model=K, load_us=1))
    story.look()
    assert (room(story).resident, room(story).displaced) == (K, "")


@pytest.mark.parametrize("fails", [False, True])
def test_a_load_for_the_nodes_own_work_owes_nothing_from_its_start_on_whether_it_fails_or_not(fails):
    story = shared()
    story.recorder.state("b", Unloaded(model=K, cause="borrowed"))
    story.look()
    assert room(story).displaced == K
    story.recorder.state("b", LoadStarted(model=M, cause="borrowed"))
    story.recorder.state("b", Loaded(model=M, load_us=TWENTY_S, cause="borrowed", displaced=K))
    story.recorder.state("b", LoadStarted(model=K, cause="own"))
    story.look()
    assert room(story).displaced == ""
    if fails:
        story.recorder.state("b", LoadFailed(model=K, cause="own", reason="killed"))
        story.look()
        assert room(story).displaced == ""


def test_a_cancelled_restore_owes_nothing():
    story = shared()
    story.recorder.state("b", LoadStarted(model=M, cause="borrowed"))
    story.recorder.state("b", Loaded(model=M, load_us=TWENTY_S, cause="borrowed", displaced=K))
    story.recorder.state("b", RestoreCancelled(model=K, reason="own_work"))
    story.look()
    assert room(story).displaced == ""


def test_a_snapshot_says_what_a_runtime_holds():
    story = shared()
    held_now = RuntimeState(runtime="gpu", loading=M, loading_us=3_000_000, displaced=K)
    story.recorder.state("b", NodeSnapshot(part=1, parts=1, queues=(), desks=(), reason="gap", runtimes=(held_now,)))
    story.look()
    assert (room(story).resident, room(story).loading, room(story).displaced) == ("", M, K)
    assert story.master.state.now_us - room(story).since_us == 3_000_000


def test_a_snapshot_that_names_models_of_no_such_runtime_is_not_believed():
    story = shared()
    said = (RuntimeState(runtime="gpu", resident=L), RuntimeState(runtime="other", resident=M))
    story.recorder.state("b", NodeSnapshot(part=1, parts=1, queues=(), desks=(), reason="gap", runtimes=said))
    story.look()
    assert room(story).resident == ""
    assert list(story.master.state.nodes[B].rooms) == ["=gpu"]


# ---- what a switch costs ---------------------------------------------------------------------------------------------


def test_a_deep_backlog_opens_a_switch_and_the_lease_names_load_and_way_back():
    story = shared()
    decisions = story.burst(200)
    assert leases(decisions) == [("LeaseGranted", "b", 2)]
    found = verdict(decisions)
    assert (found.switch_us, found.back_us) == (TWENTY_S, TWENTY_S)
    assert found.ready_us == TWENTY_S + pricing.TURNAROUND_US
    granted = next(d for d in decisions if isinstance(d, LeaseGranted))
    assert (granted.switch_us, granted.owner_job_us, granted.work) == (TWENTY_S, found.job_us, 64_000_000)


def test_a_shallow_backlog_opens_none():
    decisions = shared().burst(15)
    assert leases(decisions) == []
    assert verdict(decisions).code == "cost_rejected"


def test_a_load_in_progress_costs_only_its_rest():
    story = shared()
    story.recorder.state("b", LoadStarted(model=M, cause="borrowed"))
    story.wait(15_000_000)
    decisions = story.burst(30)
    assert leases(decisions) == [("LeaseGranted", "b", 2)]
    assert 4_900_000 < verdict(decisions).switch_us <= 5_000_000
    assert verdict(decisions).back_us == 0
    assert verdict(decisions).ready_us == verdict(decisions).switch_us + pricing.TURNAROUND_US


@pytest.mark.parametrize(("after_s", "left_s"), [(19, 1), (23, 3)])
def test_a_load_that_is_nearly_over_costs_nearly_nothing_and_a_late_one_as_long_again_as_it_is_late(after_s, left_s):
    story = shared()
    story.recorder.state("b", LoadStarted(model=M, cause="borrowed"))
    story.wait(after_s * 1_000_000)
    assert verdict(story.burst(30)).switch_us == pytest.approx(left_s * 1_000_000, abs=100_000)


def test_the_rest_of_a_foreign_load_comes_before_the_switch():
    story = Story(links=(COLD,))
    story.share("b", K, L, M, resident=K, loads_us={K: TWENTY_S, L: TWENTY_S, M: TWENTY_S})
    story.wait(600_000_000)
    story.recorder.state("b", LoadStarted(model=L, cause="own"))
    decisions = story.burst(400)
    assert 39_000_000 < verdict(decisions).ready_us < 41_000_000


def test_a_model_driven_out_without_a_measured_load_makes_the_way_back_unpriced():
    story = shared(loads_us={M: TWENTY_S})
    assert verdict(story.burst(20)).code == "restore_unpriced"


def test_an_empty_runtime_has_no_way_back():
    story = shared()
    story.recorder.state("b", Unloaded(model=K, cause="own"))
    decisions = story.burst(200)
    assert (verdict(decisions).switch_us, verdict(decisions).back_us) == (TWENTY_S, 0)


def test_a_link_that_forbids_loading_is_used_only_while_the_model_is_in():
    story = shared(links=(ON,))
    assert verdict(story.burst(200)).code == "load_forbidden"
    story.recorder.state("b", Loaded(model=M, load_us=TWENTY_S, cause="own"))
    assert ("LeaseGranted", "b", 2) in leases(story.look())


def test_a_switch_that_would_pay_but_for_the_helpers_own_requests_is_refused_as_recently_busy():
    story = shared()
    for i in range(4):
        story.recorder.state("b", started(f"req_own{i}", model="k"), after_us=8_000_000)
        story.recorder.state("b", finished(f"req_own{i}", model="k"), after_us=1_000_000)
    decisions = story.burst(60)
    assert leases(decisions) == []
    assert verdict(decisions).code == "helper_recently_busy"
    assert verdict(decisions).idle_us < 2 * TWENTY_S


def test_a_small_burst_opens_a_switch_only_if_it_ends_sooner_by_the_likely_way_back():
    switch = Switch(
        switch_us=5_000_000, back_us=60_000_000, job_us=1_000_000, jobs=2, saved_us=40_000_000, sooner_us=20_000_000,
        few=True,
    )  # fmt: skip
    idle_for_long, busy = (1 << 64) // 10**12, (1 << 64) // 30_000_000
    assert pricing.switch_gain_us(switch, idle_for_long) > 0
    assert pricing.switch_gain_us(switch, busy) == 0


@pytest.mark.parametrize(("lendable", "outcome"), [(3, "probe"), (4, "granted")])
def test_a_burst_is_small_below_four_lendable_requests(lendable, outcome):
    story = Story(links=(COLD,), fit_us=TWENTY_S)
    story.share("b", K, M, resident=K, loads_us={K: 60_000_000, M: 1_000_000})
    story.wait(600_000_000)
    for i in range(2):
        story.recorder.state("b", started(f"req_own{i}", model="k"), after_us=200_000_000)
        story.recorder.state("b", finished(f"req_own{i}", model="k"))
    story.wait(100_000_000)
    assert verdict(story.burst(2 + lendable)).outcome == outcome


def test_a_helper_that_never_had_a_request_of_its_own_is_the_less_likely_to_have_one_the_longer_it_idles():
    story = shared(resident=M)
    story.burst(1)
    state = story.master.state
    at = pricing.place_of(state, owner_key(B, M), B, M, state.nodes[B].models[M])
    rates = [pricing.own_rate_q64(state, at, idle_us) for idle_us in (0, 60_000_000)]
    assert rates == [(1 << 64) // 600_000_000, (1 << 64) // 1_200_000_000]


# ---- who may have it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fact", [held("req_own", model="k"), started("req_own", model="k")])
def test_own_work_for_any_model_of_the_runtime_keeps_borrowed_work_out(fact):
    story = shared(resident=M)
    story.recorder.state("b", fact)
    assert verdict(story.burst(20)).code == "helper_not_accepting"


def test_a_helper_that_loads_back_what_was_driven_out_takes_nothing():
    story = shared()
    story.recorder.state("b", LoadStarted(model=K, cause="restore"))
    story.recorder.state("b", Accepting(model=M))
    assert verdict(story.burst(200)).code == "helper_not_accepting"


def test_a_runtime_that_lends_one_model_to_an_owner_is_claimed_for_all_its_others():
    other = link("c", "b", "k", load_if_unloaded=True)
    story = shared(resident=M, links=(COLD, other), nodes=("a", "b"))
    story.share("c", K, resident=K)
    story.recorder.state("c", finished("req_fitc", model="k"))
    assert leases(story.burst(20)) == [("LeaseGranted", "b", 2)]
    for i in range(200):
        story.recorder.state("c", held(f"req_c{i}", model="k"))
    assert verdict(story.look(), owner="c").code == "helper_claimed"


def test_two_owners_of_the_same_borrowed_model_share_the_runtimes_depth():
    story = shared(resident=M, links=(COLD, link("c", "b")), nodes=("a", "b", "c"))
    story.recorder.state("c", finished("req_fitc"))
    story.burst(3)
    for i in range(8):
        story.recorder.state("c", held(f"req_c{i}"))
    assert leases(story.look()) == [("LeaseGranted", "b", 1)]


def test_work_borrowed_for_another_model_of_the_runtime_is_waited_for_at_its_own_price():
    other = link("c", "b", "k")
    story = shared(resident=K, links=(COLD, other))
    story.recorder.state("b", finished("req_k", model="k", service_us=9_000_000))
    story.share("c", K, resident=K)
    story.recorder.state("c", lend(Lent, "req_c", other, work=64_000_000, out=1, waited_us=1))
    story.recorder.state("b", borrow(BorrowAccepted, "req_c", other, position=0))
    story.recorder.state("b", borrow(BorrowStarted, "req_c", other))
    story.look()
    state = story.master.state
    at = pricing.place_of(state, owner_key(B, M), B, M, state.nodes[B].models[M])
    assert pricing.machine(state, at, 1 << 40, 10**12).free_us == pytest.approx(9_000_000, rel=0.01)


def test_an_owner_whose_own_model_was_driven_out_has_to_load_it_first():
    story = Story()
    story.share("a", K, M, resident=K, loads_us={K: TWENTY_S, M: TWENTY_S})
    story.recorder.state("a", finished("req_again"))
    drains = [d.drain_us for d in story.burst(5, in_engine=0) if hasattr(d, "drain_us")]
    assert drains[-1] == pytest.approx(TWENTY_S + 5_000_000, rel=0.01)


# ---- two links into one runtime --------------------------------------------------------------------------------------


def test_one_owner_is_never_leased_two_models_of_one_runtime_at_once():
    to_k = link("a", "b")
    to_k = msgspec.structs.replace(to_k, helper_model=K, link=link_id(to_k.owner, to_k.owner_model, to_k.helper, K))
    story = shared(loads_us={K: 1_000_000, M: 1_000_000}, links=(to_k, COLD))
    decisions = story.burst(40)
    for number in range(6):
        assert [lease.event.helper_model for lease in story.master.state.leases.values()] == [K]
        codes = {v.link: v.code for row in decisions if isinstance(row, OwnerPlanned) for v in row.verdicts}
        assert codes == {to_k.link: "", COLD.link: HELPER_CLAIMED}
        story.recorder.state("a", held(f"req_more{number}", 30))
        decisions = story.look()
