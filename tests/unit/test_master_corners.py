"""Given what is seldom but happens, when the master plans, then it is priced and judged for what it is."""

import pytest

from domain.events import (
    BorrowAccepted,
    BorrowFinished,
    BorrowReturned,
    BorrowStarted,
    BreakerChanged,
    CutOff,
    LendAnswered,
    LendReturned,
    Lent,
    Loaded,
    LoadStarted,
    ModelInfo,
    OwnerPlanned,
    QueueSnapshot,
    Registered,
    Restored,
)
from domain.ids import NodeId
from domain.master import slots
from domain.master.pricing import Switch, switch_gain_us
from domain.master.slotting import earliest_slots
from tests.support.history import borrow, finished, held, lend, link, registered
from tests.support.stories import ON, K, M, Story, leases, verdict

TEN_S, WORK = 10_000_000, 64_000_000
KEY = slots.key_of(ON)


def breakers(decisions) -> list[tuple[str, int]]:
    return [(d.state, d.failures) for d in decisions if isinstance(d, BreakerChanged)]


def row(decisions) -> OwnerPlanned:
    return next(d for d in reversed(decisions) if isinstance(d, OwnerPlanned))


def registers(story: Story, node: str, **fields) -> None:
    """Let a node begin anew with one model of this kind."""
    info = ModelInfo(id=M, local_id="m", context=8192, **fields)
    story.recorder.restart(node)
    story.recorder.state(node, Registered(url="http://h", models=(info,), version="1", depth=2))


# ---- whose fault an answer is ----------------------------------------------------------------------------------------

CLIENTS_FAULT, HELPERS_FAULT = (400, 413, 415, 422), (401, 403, 404, 405, 408, 429, 500, 503)


def lent_and_started(story: Story, request: str) -> None:
    story.recorder.state("a", lend(Lent, request, ON, work=WORK, out=1, waited_us=1))
    story.recorder.state("b", borrow(BorrowAccepted, request, ON, position=0))
    story.recorder.state("b", borrow(BorrowStarted, request, ON))


def ends(story: Story, request: str, status: int, *, says: str = "both") -> None:
    """Let a lent request end with this status, and let its owner, its helper or both say so."""
    lent_and_started(story, request)
    if says != "owner":
        done = borrow(BorrowFinished, request, ON, work=WORK, service_us=50_000, status=status, ok=status < 400)
        story.recorder.state("b", done)
    if says != "helper":
        story.recorder.state("a", lend(LendAnswered, request, ON, status=status, service_us=50_000))


@pytest.mark.parametrize("says", ["owner", "helper", "both"])
@pytest.mark.parametrize("status", [*CLIENTS_FAULT, *HELPERS_FAULT])
def test_a_request_that_is_faulty_itself_speaks_not_against_the_helper_and_any_other_error_does(status, says):
    story = Story()
    story.burst(30)
    for i in range(2, 6):
        ends(story, f"req_{i}", status, says=says)
    story.recorder.state("a", held("req_more"))
    assert bool(breakers(story.look())) == (status in HELPERS_FAULT)


@pytest.mark.parametrize("says", ["owner", "helper"])
@pytest.mark.parametrize("status", CLIENTS_FAULT)
def test_a_faulty_request_makes_up_for_no_failure_and_is_no_price(status, says):
    story = Story()
    story.burst(30)
    for request, ended in (("req_2", 500), ("req_3", status), ("req_4", 500)):
        ends(story, request, ended, says=says)
    story.recorder.state("a", held("req_more"))
    assert breakers(story.look()) == [("opened", 2)]
    assert not story.master.state.fits.get("b/m")


def test_a_faulty_request_leaves_a_half_open_helper_as_it_was_and_the_next_one_may_try():
    story = Story()
    story.burst(30)
    ends(story, "req_2", 500)
    ends(story, "req_3", 500)
    story.look()
    story.ring()
    ends(story, "req_4", 400)
    decisions = story.look()
    assert breakers(decisions) == []
    assert verdict(decisions).slots == 1
    ends(story, "req_5", 200)
    assert breakers(story.look()) == [("closed", 0)]


# ---- a model that cannot be loaded -----------------------------------------------------------------------------------


def load_fails(story: Story, request: str, *, says: str) -> None:
    """Let a helper accept a request, fail to load its model for it, and hand it back."""
    story.recorder.state("a", lend(Lent, request, ON, work=WORK, out=1, waited_us=1))
    story.recorder.state("b", borrow(BorrowAccepted, request, ON, position=0))
    if says != "owner":
        handed = borrow(BorrowReturned, request, ON, reason="load_failed", after_arrival=False)
        story.recorder.state("b", handed, after_us=TEN_S)
    if says != "helper":
        story.recorder.state("a", lend(LendReturned, request, ON, reason="load_failed"))
        story.recorder.state("a", held(request, lendable=False))


@pytest.mark.parametrize("says", ["helper", "both"])
def test_a_helper_whose_model_cannot_be_loaded_is_quarantined_for_twice_as_long_each_time(says):
    story = Story()
    story.burst(40)
    load_fails(story, "req_2", says=says)
    assert breakers(story.look()) == []
    load_fails(story, "req_3", says=says)
    story.recorder.state("a", held("req_more"))
    decisions = story.look()
    assert breakers(decisions) == [("opened", 2)]
    assert (verdict(decisions).code, verdict(decisions).outcome) == ("quarantined", "skipped")
    shut_us = []
    for i in range(4, 10):
        story.ring()
        load_fails(story, f"req_{i}", says=says)
        shut_us += [d.quarantine_us for d in story.look() if isinstance(d, BreakerChanged) and d.state == "opened"]
    assert [round(us / 1_000_000) for us in shut_us] == [10, 20, 40, 80, 120, 120]


@pytest.mark.parametrize("other", [ON, link("c", "b")], ids=["of one owner", "of two owners"])
def test_one_load_that_fails_is_one_failure_however_many_requests_waited_for_it(other):
    story = Story("a", "b", "c", links=(ON, link("c", "b")))
    story.burst(40)
    waiting = (("req_2", ON), ("req_3", other))
    for request, on in waiting:
        story.recorder.state(on.owner, lend(Lent, request, on, work=WORK, out=1, waited_us=1))
        story.recorder.state("b", borrow(BorrowAccepted, request, on, position=0))
    for request, on in waiting:
        story.recorder.state("b", borrow(BorrowReturned, request, on, reason="load_failed", after_arrival=True))
    for request, on in waiting:
        story.recorder.state(on.owner, lend(LendReturned, request, on, reason="load_failed"))
        story.recorder.state(on.owner, held(request, lendable=False))
    decisions = story.look()
    assert breakers(decisions) == []
    assert verdict(decisions, owner="a").slots == 1
    load_fails(story, "req_4", says="both")
    story.recorder.state("a", held("req_more"))
    assert breakers(story.look()) == [("opened", 2)]


def test_a_helper_that_hands_back_for_work_of_its_own_has_not_failed():
    story = Story()
    story.burst(40)
    for i in (2, 3, 4):
        sent = lend(Lent, f"req_{i}", ON, work=WORK, out=1, waited_us=1)
        story.recorder.state("a", sent)
        story.recorder.state("b", borrow(BorrowReturned, f"req_{i}", ON, reason="own_work", after_arrival=True))
    story.recorder.state("a", held("req_more"))
    assert breakers(story.look()) == []


# ---- works of other sizes --------------------------------------------------------------------------------------------


def measured_at(work: int, *, lane: str, backlog: int = 40) -> Story:
    """Let both nodes have done nothing but this work, and the owner hold more of it."""
    story = Story(fit_us=0)
    for node in ("a", "b"):
        registers(story, node, lane=lane)
        for i in range(5):
            story.recorder.state(node, finished(f"req_{node}{i}", work=work, service_us=TEN_S))
    for i in range(backlog):
        story.recorder.state("a", held(f"req_{i}", work=work))
    return story


@pytest.mark.parametrize(("lane", "odd"), [("image", WORK // 4), ("image", WORK * 4), ("text", WORK * 100)])
def test_one_request_of_another_size_leaves_the_price_to_the_many_that_are_measured(lane, odd):
    story = measured_at(WORK, lane=lane)
    assert verdict(story.look()).outcome == "granted"
    story.recorder.state("a", held("req_odd", work=odd))
    decisions = story.look()
    seen = verdict(decisions)
    assert (seen.outcome, seen.samples) == ("granted", 5)
    within = 1 if lane == "image" else 2
    assert TEN_S - 1 <= row(decisions).owner_job_us <= within * TEN_S + 1


@pytest.mark.parametrize(("lane", "odd"), [("image", WORK // 4), ("image", WORK * 4), ("text", WORK * 3)])
def test_where_all_that_is_held_is_of_another_size_nothing_has_a_price(lane, odd):
    story = measured_at(WORK, lane=lane, backlog=0)
    for i in range(40):
        story.recorder.state("a", held(f"req_odd{i}", work=odd))
    decisions = story.look()
    assert row(decisions).owner_job_us == -1
    assert "unpriced" in verdict(decisions).code


def test_works_below_and_above_the_measured_one_are_not_priced_by_their_mean():
    story = measured_at(WORK, lane="image", backlog=0)
    for i in range(40):
        story.recorder.state("a", held(f"req_odd{i}", work=WORK // 2 if i % 2 else WORK * 2))
    assert row(story.look()).owner_job_us == -1


def test_a_helper_that_is_measured_for_some_of_what_is_held_keeps_its_own_price():
    story = measured_at(WORK, lane="image")
    story.recorder.state("a", finished("req_long", work=WORK * 4, service_us=TEN_S * 4))  # the owner has seen two sizes
    story.recorder.state("a", held("req_odd", work=WORK * 4))
    assert verdict(story.look()).samples == 5


# ---- an engine that works on several at a time -----------------------------------------------------------------------


def test_an_engine_of_more_slots_than_the_depth_is_priced_by_the_depth_on_both_sides():
    story = Story(fit_us=0)
    for node in ("a", "b"):
        registers(story, node, lane="image", slots=4)
    story.recorder.state("a", finished("req_fit", service_us=TEN_S))
    decisions = story.burst(12)
    assert row(decisions).owner_job_us == pytest.approx(TEN_S // 2, abs=1)
    seen = verdict(decisions)
    assert seen.job_us == pytest.approx(TEN_S, abs=1)  # a whole job's time, by which its owner waits
    assert (seen.quota, seen.slots) == (6, 2)  # of ten; the owner's engine has two more for ten seconds
    told = story.master.state.leases[ON.link].event
    assert (told.owner_job_us, told.job_us) == pytest.approx((TEN_S, TEN_S), abs=2)  # one job takes as long at either


def test_a_helper_of_two_slots_is_ready_when_both_of_its_jobs_are_through():
    story = Story(fit_us=0)
    for node in ("a", "b"):
        registers(story, node, lane="image", slots=2)
    story.recorder.state("a", finished("req_fit", service_us=TEN_S))
    for i in (0, 1):
        lent_and_started(story, f"req_out{i}")
    ready_us = verdict(story.burst(12)).ready_us
    assert 9_000_000 < ready_us < 11_000_000


def test_a_slower_helper_of_two_slots_has_a_lease_for_both():
    story = Story(fit_us=0)
    for node in ("a", "b"):
        registers(story, node, lane="image", slots=2)
    story.recorder.state("a", finished("req_fit", service_us=TEN_S))
    for i in range(3):
        story.recorder.state("b", finished(f"req_b{i}", service_us=3 * TEN_S))
    decisions = story.burst(40)
    assert verdict(decisions).job_us > row(decisions).owner_job_us * 2
    assert verdict(decisions).slots == 2


def test_a_helper_that_has_one_slot_left_serves_this_owner_one_at_a_time():
    other = link("c", "b")
    story = Story("a", "b", "c", links=(ON, other), fit_us=0)
    for node in ("a", "b"):
        registers(story, node, lane="image", slots=2)
    story.recorder.state("a", finished("req_fit", service_us=TEN_S))
    story.recorder.state("c", lend(Lent, "req_c", other, work=WORK, out=1, waited_us=1))
    seen = verdict(story.burst(12))
    assert (seen.quota, seen.slots) == (3, 1)  # with both of its slots it would take 5


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_visit_to_a_helper_that_serves_two_at_once_takes_half_as_long(at_once):
    story = Story(fit_us=0)
    story.share("b", K, M, resident=K, loads_us={K: TEN_S, M: TEN_S})
    kind = {"lane": "image", "runtime": "gpu", "slots": at_once}
    infos = tuple(ModelInfo(id=each, local_id=each, ready=each == K, **kind) for each in (K, M))
    registers(story, "a", lane="image")
    story.recorder.state("b", Registered(url="http://h", models=infos, version="1", depth=2))
    story.recorder.decree(link("a", "b", load_if_unloaded=True))
    story.recorder.state("a", finished("req_fit", service_us=TEN_S))
    decisions = story.burst(40)
    plan, seen = row(decisions), verdict(decisions)
    owner = (plan.drain_us - plan.held * plan.owner_job_us, plan.owner_job_us)
    _, alone_us, alone = earliest_slots([owner], plan.held)
    counts, both_us, both = earliest_slots([owner, (seen.ready_us, seen.job_us // at_once)], plan.held)
    switch = Switch(
        switch_us=TEN_S, back_us=TEN_S, job_us=seen.job_us, jobs=-(-counts[1] // at_once), saved_us=alone - both,
        sooner_us=alone_us - both_us, few=False,
    )  # fmt: skip
    assert (seen.quota, seen.gain_us) == (
        counts[1],
        switch_gain_us(switch, (1 << 64) // (10 * (seen.idle_us + 60_000_000))),
    )


# ---- a helper that tells something new of itself ---------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    "told", [{"url": "http://other"}, {"context": 128}, {"url": "http://other", "context": 128}], ids=str
)
def test_a_young_lease_follows_the_helpers_window_and_address_at_once(told, restarts):
    story = Story()
    story.burst(30)
    lease = story.master.state.leases[ON.link].event
    if restarts:
        story.recorder.restart("b")
    story.recorder.state("b", registered(**told))
    assert leases(story.look()) == [("LeaseChanged", "b", 2)]
    changed = story.master.state.leases[ON.link].event
    wanted = (lease.lease, told.get("url", lease.helper_url), told.get("context", lease.context))
    assert (changed.lease, changed.helper_url, changed.context) == wanted


def test_a_lease_that_lives_on_for_what_is_out_follows_the_helper_too_and_says_so_once():
    story = Story()
    story.burst(3)
    story.recorder.state("a", lend(Lent, "req_2", ON, work=WORK, out=1, waited_us=1))
    assert leases(story.look()) == []
    story.recorder.state("b", registered(context=128, url="http://other"))
    assert leases(story.look()) == [("LeaseChanged", "b", 1)]
    lease = story.master.state.leases[ON.link].event
    assert (lease.context, lease.helper_url) == (128, "http://other")
    story.recorder.state("a", QueueSnapshot(model=M, held=0, in_engine=2, lent=1))
    assert leases(story.look()) == []
    story.recorder.state("a", lend(LendAnswered, "req_2", ON, status=200, service_us=1_000_000))
    assert leases(story.look()) == [("LeaseCleared", "b", 0)]


def test_a_lease_that_is_narrowed_follows_the_helper_too():
    story = Story()
    story.burst(10)
    story.recorder.state("a", lend(Lent, "req_2", ON, work=WORK, out=1, waited_us=1))
    for i in (*range(3, 9), 0, 1):
        story.recorder.state("a", finished(f"req_{i}"))
    story.recorder.state("b", registered(context=4096, url="http://other"))
    assert leases(story.look()) == [("LeaseChanged", "b", 1)]
    lease = story.master.state.leases[ON.link].event
    assert (lease.context, lease.helper_url) == (4096, "http://other")


def test_a_young_lease_follows_a_helper_that_sees_images_now():
    story = Story(fit_us=0)
    registers(story, "a", lane="image")
    registers(story, "b", lane="image")
    story.recorder.state("a", finished("req_fit", service_us=TEN_S))
    story.burst(30)
    lease = story.master.state.leases[ON.link].event
    registers(story, "b", lane="image", capabilities=("vision",))
    story.look()
    assert story.master.state.leases[ON.link].event.vision != lease.vision


def test_a_young_lease_of_a_helper_that_says_the_same_again_is_left_alone():
    story = Story()
    story.burst(30)
    story.recorder.state("b", registered())
    assert leases(story.look()) == []


def test_a_helper_that_registers_again_in_the_same_life_goes_on_idling():
    story = Story()
    story.wait(55_000_000)
    story.recorder.state("b", registered(context=4096))
    assert verdict(story.burst(10)).idle_us > 50_000_000


def test_a_helper_that_registers_again_in_the_same_life_has_done_what_it_did():
    story = Story()
    story.share("b", K, M, resident=K, loads_us={K: TEN_S, M: TEN_S})
    story.wait(55_000_000)
    story.recorder.state("b", Loaded(model=K, load_us=TEN_S, cause="own"))
    story.look()
    infos = tuple(story.master.state.nodes[NodeId("b")].models.values())
    story.wait(5_000_000)
    story.recorder.state("b", Registered(url="http://h", models=infos, version="1", depth=2))
    assert 5_000_000 < verdict(story.burst(10)).idle_us < 6_000_000


def test_a_helper_that_registers_again_while_it_loads_back_goes_on_doing_so():
    story = Story()
    story.share("b", K, M, resident=M, loads_us={K: TEN_S, M: TEN_S})
    story.recorder.state("b", LoadStarted(model=K, cause="restore"))
    story.look()
    infos = tuple(story.master.state.nodes[NodeId("b")].models.values())
    story.recorder.state("b", Registered(url="http://h", models=infos, version="1", depth=2))
    assert verdict(story.burst(30)).code == "helper_not_accepting"


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("says", ["owner", "helper"])
def test_only_a_new_process_begins_without_failures(says, restarts):
    story = Story()
    story.burst(30)
    for i in (2, 3):
        if says == "helper":
            ends(story, f"req_{i}", 502, says="helper")
        else:
            lent_and_started(story, f"req_{i}")
            story.recorder.state("a", lend(CutOff, f"req_{i}", ON, reason="helper_failed", may_have_run=True))
    story.recorder.state("a", held("req_more"))
    assert breakers(story.look()) == [("opened", 2)]
    if restarts:
        story.recorder.restart("b")
    story.recorder.state("b", registered(context=4096))
    decisions = story.look()
    assert breakers(decisions) == ([("closed", 0)] if restarts else [])
    assert (verdict(decisions).code == "quarantined") != restarts


# ---- another model under the same name -------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("change", "stays"),
    [({"hash": "b" * 64}, 0), ({"local_id": "other"}, 0), ({"engine": "other"}, 0), ({"context": 4096}, 5), ({}, 5)],
    ids=str,
)
def test_what_was_measured_of_a_model_is_no_price_of_another_one_under_its_name(change, stays, restarts):
    story = Story()
    for i in range(5):
        story.recorder.state("b", finished(f"req_b{i}", service_us=900_000))
    story.recorder.state("b", Loaded(model=M, load_us=TEN_S, cause="own"))
    assert verdict(story.burst(30)).samples == 5
    if restarts:
        story.recorder.restart("b")
    info = ModelInfo(**{"id": M, "local_id": "m", "context": 8192, **change})
    story.recorder.state("b", Registered(url="http://h", models=(info,), version="1", depth=2))
    assert verdict(story.look()).samples == stays
    assert bool(story.master.state.fits.get("b/m")) == bool(stays)


# ---- loads -----------------------------------------------------------------------------------------------------------


def test_a_restore_is_one_sample_of_the_load():
    story = Story()
    story.share("b", K, M, resident=K)
    for load_us in (TEN_S, TEN_S, TEN_S):
        story.recorder.state("b", Loaded(model=K, load_us=load_us, cause="own"))
    for _ in range(2):
        story.recorder.state("b", Loaded(model=K, load_us=60_000_000, cause="restore"))
        story.recorder.state("b", Restored(model=K, load_us=60_000_000))
    story.look()
    assert story.master.state.fits["b/k"].loads_us == [TEN_S] * 3 + [60_000_000] * 2
