"""Stories of requests, leases and commits: what a reader is told follows from what was stored, and from nothing else."""

from collections.abc import Sequence

import msgspec

from domain.events import (
    Accepting,
    BorrowAccepted,
    BorrowFinished,
    BorrowStarted,
    Fact,
    Finished,
    Kept,
    LeaseChanged,
    LeaseGranted,
    LendAnswered,
    LendReturned,
    Lent,
    LinkAdded,
    NotAccepting,
    RequestOrphaned,
)
from domain.ids import LinkId, ModelId, NodeId, RequestId
from domain.master.reasons import REASONS
from projections.why.commit import commit_story
from projections.why.lease import lease_story
from projections.why.plans import folded
from projections.why.request import PLANS_SHOWN, RequestStory, request_story
from projections.why.said import Committed, Said, said_of
from tests.support import golden
from tests.support.history import Recorder, borrow, finished, held, lend, link, registered, started
from tests.support.stories import ON, Story

FIT_US, HELPER_US, LOAD_US = 1_000_000, 400_000, 3_000_000


def commits_of(story: Story) -> list[Committed]:
    """Return the commits of a story, each stamped as just after its newest input."""
    facts = story.recorder.facts
    return [Committed(at_ns=facts[made.hi - 1].stamp_ns + 1, commit=made) for made in story.master.commits]


def facts_of(recorder: Recorder, needle: str = "") -> list[Said]:
    return [said for message in recorder.facts if needle.encode() in message.body if (said := said_of(message))]


def told(story: Story, request: str) -> RequestStory:
    made = request_story(request, facts_of(story.recorder, f'"{request}"'), commits_of(story))
    assert made is not None
    return made


def under(fact: Fact, lease: str) -> Fact:
    return msgspec.structs.replace(fact, lease=lease)


def granted(story: Story) -> LeaseGranted:
    return next(d for made in story.master.commits for d in made.decisions if isinstance(d, LeaseGranted))


def lent_story(*links: LinkAdded, requests: int = 10, stream: bool = False) -> tuple[Story, LeaseGranted]:
    """Return a burst of which request 2 was lent over the link and answered after 400 ms there, with its lease.

    `stream`: a stream's answer says nothing of service and load; the helper had to load.
    """
    story = Story("a", "b", "c", links=links or (ON,), fit_us=FIT_US)
    story.burst(requests)
    lease = granted(story)
    facts = [
        ("a", under(lend(Lent, "req_2", ON, work=64_000_000, out=1, waited_us=3_000, slots=2), lease.lease)),
        ("b", under(borrow(BorrowAccepted, "req_2", ON, position=0), lease.lease)),
        ("b", under(borrow(BorrowStarted, "req_2", ON), lease.lease)),
    ]
    for node, fact in facts:
        story.recorder.state(node, fact)
    times = {"service_us": HELPER_US, "load_us": LOAD_US if stream else 0}
    ended = borrow(BorrowFinished, "req_2", ON, work=64_000_000, status=200, ok=True, **times)
    story.recorder.state("b", under(ended, lease.lease), after_us=HELPER_US)
    answer = lend(LendAnswered, "req_2", ON, status=200, service_us=0 if stream else HELPER_US)
    story.recorder.state("a", under(answer, lease.lease))
    story.recorder.state("a", finished("req_2", helper="b", service_us=0 if stream else HELPER_US))
    story.look()
    return story, lease


def test_a_lent_request_names_helper_lease_reason_and_what_it_won():
    story, lease = lent_story()
    made = told(story, "req_2")
    assert (made.owner, made.model, made.helper, made.state) == ("a", "m", "b", "finished")
    assert made.lease is not None
    assert (made.lease.lease, made.reason) == (lease.lease, "pays")
    assert [moment.what for moment in made.moments] == [
        "held", "lent", "accepted", "started", "finished", "answered", "finished",
    ]  # fmt: skip
    assert [moment.t_us for moment in made.moments] == sorted(moment.t_us for moment in made.moments)
    assert made.moments[0].t_us == 0
    compared = made.compared
    assert (compared.measured_job_us, compared.job_us) == (HELPER_US, lease.job_us)
    # it was the first held behind two in the engine of an owner that takes a second for each
    assert 2 * FIT_US <= compared.home_finish_us <= 3 * FIT_US + FIT_US // 2
    assert compared.won_us == compared.home_finish_us - compared.measured_finish_us > FIT_US
    assert "lent to b" in made.headline
    assert "predicted" in made.headline


def test_of_a_lent_stream_the_helper_says_what_service_and_load_took_and_nothing_is_told_as_zero():
    story, lease = lent_story(stream=True)
    compared = told(story, "req_2").compared
    assert (compared.measured_job_us, compared.measured_load_us) == (HELPER_US, LOAD_US)
    texts = [moment.text for moment in told(story, "req_2").moments if moment.what == "answered"]
    assert texts == ["b answered 200"]
    made = lease_story(lease.lease, commits_of(story), facts_of(story.recorder, lease.lease))
    assert made is not None
    assert [(each.service_us, each.load_us) for each in made.requests] == [(HELPER_US, LOAD_US)]
    assert (made.gain.measured_job_us, made.gain.measured_load_us) == (HELPER_US, LOAD_US)


def test_a_service_that_nobody_stated_is_unknown_and_not_zero():
    story, lease = lent_story(stream=True)
    facts = [each for each in facts_of(story.recorder) if not isinstance(each.fact, BorrowFinished)]
    made = request_story("req_2", [each for each in facts if each.names("req_2")], commits_of(story))
    assert made is not None
    assert (made.compared.measured_job_us, made.compared.measured_load_us) == (-1, -1)
    told_of = lease_story(
        lease.lease, commits_of(story), [e for e in facts if getattr(e.fact, "lease", "") == lease.lease]
    )
    assert told_of is not None
    assert ([each.service_us for each in told_of.requests], told_of.gain.measured_job_us) == ([-1], -1)


def test_the_price_of_the_second_best_candidate_stands_beside_the_chosen_one():
    story, _ = lent_story(ON, link("a", "c"))
    compared = told(story, "req_2").compared
    assert compared.next_best == "c"
    assert compared.next_best_first_answer_us > 0


def test_every_candidate_of_a_plan_comes_with_the_sentence_of_its_code():
    story = Story("a", "b", links=(ON, link("a", "z")), fit_us=FIT_US)
    story.burst(6)
    plan = told(story, "req_4").plans[0]
    said = {each.helper: (each.outcome, each.code, each.sentence) for each in plan.candidates}
    assert said["z"] == ("skipped", "model_unknown", REASONS["model_unknown"])
    assert said["b"][0] == "granted"
    assert plan.leases[0].helper == "b"


def test_plans_that_say_the_same_are_one_with_their_number():
    story = Story("a", "z", links=(link("a", "z", load_if_unloaded=False),), fit_us=FIT_US)
    story.master.state.nodes.pop(NodeId("z"), None)
    story.burst(6)
    for number in range(40):
        story.recorder.state("a", held(f"req_more{number}", number + 6))
        story.look()
    made = told(story, "req_2")
    assert [plan.times for plan in made.plans] == [41]
    assert (made.plans[0].last_version - made.plans[0].version, made.plans_left_out) == (40, 0)


def test_of_many_different_plans_the_first_the_newest_and_the_one_of_the_lease_are_shown():
    story, lease = lent_story()
    for number in range(60):
        refuses = NotAccepting(model=ModelId("m"), reason="own_work")
        story.recorder.state("b", refuses if number % 2 else Accepting(model=ModelId("m")))
        story.look()
    made = told(story, "req_9")
    assert len(made.plans) <= PLANS_SHOWN
    assert made.plans_left_out > 0
    assert made.plans[0].version == lease_version(lease)


def lease_version(lease: LeaseGranted) -> int:
    return int(lease.lease.split("-")[1])


def test_a_request_that_came_back_unstarted_says_why_and_who_served_it():
    story = Story(fit_us=FIT_US)
    story.burst(6)
    lease = granted(story).lease
    story.recorder.state("a", under(lend(Lent, "req_2", ON, work=64_000_000, out=1, waited_us=9), lease))
    story.recorder.state("a", under(lend(LendReturned, "req_2", ON, reason="own_work"), lease))
    story.recorder.state("a", held("req_2", lendable=False))
    story.recorder.state("a", started("req_2"), after_us=700_000)
    story.recorder.state("a", finished("req_2"), after_us=FIT_US)
    story.look()
    made = told(story, "req_2")
    returned = next(moment for moment in made.moments if moment.what == "returned")
    assert "own_work (The helper has a request of its own" in returned.text
    assert [moment.what for moment in made.moments].count("held") == 2
    assert "served by its owner" in made.headline


def test_what_it_waited_for_is_told_span_by_span():
    story = Story(fit_us=FIT_US)
    story.burst(5)
    kept = Kept(
        request=RequestId("req_2"), model=ModelId("m"), helper=NodeId("b"), link=LinkId(ON.link),
        owner_finish_us=9_000_000, helper_finish_us=4_000_000, waited_us=500_000,
    )  # fmt: skip
    story.recorder.state("a", kept, after_us=500_000)
    lease = granted(story).lease
    story.recorder.state(
        "a", under(lend(Lent, "req_2", ON, work=64_000_000, out=1, waited_us=9), lease), after_us=2_000_000
    )
    story.recorder.state("b", under(borrow(BorrowAccepted, "req_2", ON, position=1), lease))
    story.recorder.state("b", under(borrow(BorrowStarted, "req_2", ON, load_us=3_000_000), lease), after_us=4_000_000)
    story.look()
    waits = {wait.reason: wait for wait in told(story, "req_2").waits}
    assert waits["own_queue"].us == 500_000 + (5 - 2 - 1) * 1000  # the others of the burst came meanwhile
    assert waits["own_queue"].text == "behind 0 of its own and 2 in its owner's engine"
    assert waits["faster_helper"].us == 2_000_000
    assert (waits["desk"].us, waits["load"].us) == (1_000_000, 3_000_000)
    assert told(story, "req_2").state == "lent"


def test_an_orphaned_request_is_over_by_the_masters_word():
    story = Story(fit_us=FIT_US)
    story.burst(4)
    story.recorder.restart("a")
    story.recorder.state("a", registered())
    story.look()
    assert any(isinstance(d, RequestOrphaned) for made in story.master.commits for d in made.decisions)
    made = told(story, "req_3")
    assert made.state == "orphaned"
    assert made.moments[-1].who == "master"


def test_a_request_that_nobody_stored_has_no_story():
    story = Story(fit_us=FIT_US)
    assert request_story("req_nobody", facts_of(story.recorder), commits_of(story)) is None
    assert lease_story("00010000-9-9", commits_of(story), []) is None


def test_what_another_node_says_of_a_request_in_its_owners_place_is_not_in_its_story():
    story, _ = lent_story()
    story.recorder.state("b", finished("req_3"))
    made = request_story("req_3", facts_of(story.recorder, '"req_3"'), commits_of(story))
    assert made is not None
    assert (made.owner, made.state) == ("a", "held")
    assert {each.who for each in made.moments} == {"a"}


def test_a_fact_that_the_master_did_not_believe_is_in_no_story():
    story, _ = lent_story()
    forged = story.recorder.state("a", finished("req_3", helper="c"))
    commits = commits_of(story)
    last = commits[-1].commit
    commits[-1] = Committed(
        at_ns=commits[-1].at_ns, commit=msgspec.structs.replace(last, rejected=((forged.seq, "bad_mac"),))
    )
    made = request_story("req_3", facts_of(story.recorder, '"req_3"'), commits)
    assert made is not None
    assert made.state == "held"


def test_a_lease_tells_its_grant_its_renewals_what_was_lent_and_its_end():
    story, lease = lent_story()
    for number in range(3, 10):
        story.recorder.state("a", started(f"req_{number}"))
        story.recorder.state("a", finished(f"req_{number}"), after_us=FIT_US)
        story.look()
    made = lease_story(lease.lease, commits_of(story), facts_of(story.recorder, lease.lease))
    assert made is not None
    assert (made.owner, made.helper, made.version, made.state) == ("a", "b", lease_version(lease), "cleared")
    assert made.ended_code == "nothing_lendable"
    assert made.ended_sentence == REASONS["nothing_lendable"]
    assert [(each.request, each.outcome, each.service_us) for each in made.requests] == [
        ("req_2", "answered", HELPER_US)
    ]
    assert made.steps[0].text.startswith("granted: ")
    assert made.plan is not None
    assert made.plan.candidates[0].helper == "b"
    assert (made.gain.gain_us, made.gain.measured_job_us) == (lease.gain_us, HELPER_US)


def came_later(said: Said) -> Said:
    """Return an end of a request that came after the others."""
    assert isinstance(said.fact, Finished)
    return msgspec.structs.replace(said, fact=msgspec.structs.replace(said.fact, wait_us=said.fact.wait_us - 1000))


def test_the_gain_of_a_lease_is_held_against_when_its_queue_was_done():
    story, lease = lent_story(requests=4)
    ends = facts_of(story.recorder, "queue.finished")
    at_ns = commits_of(story)[lease_version(lease) - 1].at_ns

    def end(request: str, after_us: int) -> Said:
        fact = Finished(request=RequestId(request), model=ModelId("m"), wait_us=after_us, service_us=1, status=200)
        return msgspec.structs.replace(
            ends[0], who="a", pseq=after_us, seq=10_000, fact=fact, at_ns=at_ns + after_us * 1000
        )

    inside = [end("req_0", 400_000), end("req_1", 800_000)]
    found = [*inside, end("req_2", 1_000_000), end("req_3", 2_000_000), came_later(end("req_4", 2_500_000))]
    made = lease_story(lease.lease, commits_of(story), [], found)
    assert made is not None
    assert made.plan is not None
    plan = made.plan
    assert plan.held == 2
    alone_us = (plan.drain_us - plan.owner_job_us) + plan.drain_us  # when the owner alone ends the two of them
    assert (made.gain.measured_gain_us, made.gain.measured_over) == (alone_us - 3_000_000, 2)
    unknown = lease_story(lease.lease, commits_of(story), [], found[:3])
    assert unknown is not None
    assert unknown.gain.measured_over == 0


def test_a_commit_tells_its_ranges_its_verdicts_and_the_leases_before_and_after():
    story, lease = lent_story()
    committed = commits_of(story)[lease_version(lease) - 1]
    made = commit_story(committed, ["queue.held", "queue.held", "queue.started"])
    assert (made.lo, made.hi, made.digest) == (committed.commit.lo, committed.commit.hi, committed.commit.digest)
    assert made.inputs == {"queue.held": 2, "queue.started": 1}
    assert made.plans[0].candidates[0].outcome == "granted"
    assert [(turn.lease, turn.slots_before, turn.slots_after) for turn in made.leases] == [
        (lease.lease, 0, lease.slots)
    ]
    again = commit_story(committed, before={lease.link: lease})
    assert again.leases[0].slots_before == lease.slots


def every_story(name: str) -> Sequence[RequestStory]:
    recorder, commits = golden.load(name)
    facts = [said for message in recorder.facts if (said := said_of(message))]
    stamped = [Committed(at_ns=recorder.facts[made.hi - 1].stamp_ns, commit=made) for made in commits]
    requests = sorted({str(getattr(said.fact, "request", "")) for said in facts} - {""})
    stories = [request_story(each, [said for said in facts if said.names(each)], stamped) for each in requests]
    return [each for each in stories if each is not None]


def test_every_request_of_the_stored_histories_has_a_story_with_an_end_or_a_state():
    for name in ("random", "realistic", "rules", "switch"):
        stories = every_story(name)
        assert len(stories) > 20
        for story in stories:
            assert story.headline
            assert story.moments
            assert len(story.plans) <= PLANS_SHOWN
            assert all(each.sentence for plan in story.plans for each in plan.candidates), story


def test_the_lease_of_a_request_is_the_one_that_its_owner_knew_not_the_one_that_was_on_its_way():
    story = Story(fit_us=FIT_US)
    story.burst(3)
    lease = granted(story)
    assert lease.slots == 1
    for number in range(3, 9):
        story.recorder.state("a", held(f"req_{number}", number - 1))
    story.look()
    assert any(isinstance(d, LeaseChanged) and d.slots == 2 for made in story.master.commits for d in made.decisions)
    story.recorder.state("a", under(lend(Lent, "req_2", ON, work=64_000_000, out=1, waited_us=9, slots=1), lease.lease))
    made = told(story, "req_2").lease
    assert made is not None
    assert (made.version, made.kind, made.slots) == (lease_version(lease), "granted", 1)


def test_of_a_request_of_a_model_in_no_link_only_the_end_is_known_and_that_is_said():
    story = Story(fit_us=FIT_US)
    story.recorder.state("b", finished("req_alone", service_us=700_000))
    story.look()
    made = told(story, "req_alone")
    assert (made.owner, made.state, made.compared.measured_finish_us) == ("b", "finished", 700_000)
    assert "stands in no link" in made.headline


def test_plans_that_say_something_else_in_between_are_not_one():
    story = Story("a", "b", links=(link("a", "z"),), fit_us=FIT_US)
    story.burst(6)
    [plan] = told(story, "req_2").plans
    other = msgspec.structs.replace(plan.candidates[0], code="node_silent")
    silent = msgspec.structs.replace(plan, candidates=(other,))
    assert [each.times for each in folded([plan, plan, silent, plan])] == [2, 1, 1]


def test_what_the_owner_says_is_timed_by_its_own_clock_and_all_else_by_the_servers():
    story, _ = lent_story()
    said = facts_of(story.recorder, '"req_2"')
    late_us = 5_000_000  # the owner's facts came out of its spool, so their stamps say nothing
    owner_us = {each.seq: at * 10_000 for at, each in enumerate(said, start=1)}
    timed = [
        msgspec.structs.replace(each, mono_us=owner_us[each.seq], at_ns=each.at_ns + late_us * 1000 * (each.who == "a"))
        for each in said
    ]
    made = request_story("req_2", timed, commits_of(story))
    assert made is not None
    by_owner = {moment.t_us for moment in made.moments if moment.who == "a"}
    assert by_owner == {owner_us[each.seq] - 10_000 for each in said if each.who == "a"}
    assert made.compared.measured_finish_us == owner_us[said[-1].seq] - 10_000
