"""Promises of one model's machines under any order of inputs, echoes and faults included.

A small world plays engine, helpers, owners and clients. It believes actions for what is where, folds facts apart from that,
and compares both with the machine's own snapshot after each input.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from domain.actions import Lend, OrderKey, Output
from domain.events import (
    BorrowAccepted,
    Held,
    Kept,
    LeaseCleared,
    LeaseStalled,
    Lent,
    LinkPriced,
)
from domain.ids import LeaseId, LinkId, RequestId
from domain.inputs import EngineResult, LendFailure, LendResult, NewSize
from domain.runtime import ModelRuntime
from tests.property.runtime_world import LINKS, RETRY_US, WAIT_US, World
from tests.unit.machine_rig import BACK_LINK, SECOND, TTL, cleared, lease, new, offer, rid, runtime, word

STATED = 1000
"""The work of each request at its arrival."""
OFTEN = st.sampled_from([True, True, True, True, False])


class RuntimeMachine(RuleBasedStateMachine):
    """Any order of inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.made = self._make()
        self.inputs: list[tuple[str, tuple[Any, ...]]] = []
        self.outputs: list[list[Output]] = []
        self.numbers = 0
        self.version = 0
        self.answering: dict[str, Lend] = {}
        self.sized: set[RequestId] = set()
        self.works: dict[str, int] = {}
        self.streams: set[str] = set()
        self.streams_on = True
        self.early: dict[LinkId, tuple[Any, OrderKey, int | None]] = {}
        self.call("set_links", list(LINKS), [BACK_LINK])
        for link in LINKS:
            self.take_lease(link=link, slots=2, age_us=0, step=1, name="l1", clear=False, job_us=1, owner_job_us=0)

    @staticmethod
    def _make() -> ModelRuntime:
        return runtime(owner=(), wait_us_max=WAIT_US, held_max=6)

    def call(self, name: str, *args: Any, before: Callable[[], None] | None = None) -> list[Output]:
        outputs: list[Output] = getattr(self.made, name)(*args, self.world.now_us)
        self.inputs.append((name, (*args, self.world.now_us)))
        self.outputs.append(outputs)
        if not self.streams_on:
            assert not [one for one in outputs if isinstance(one, Lent) and one.request in self.streams]
        if before is not None:
            before()
        self.world.see(outputs)
        return outputs

    # -- clients

    @rule(count=st.integers(2, 5))
    def burst(self, count):
        for _ in range(count):
            self.submit(streaming=False, replayable=True, lendable=True)

    @rule(streaming=st.booleans(), replayable=OFTEN, lendable=OFTEN)
    def submit(self, streaming, replayable, lendable):
        self.numbers += 1
        world, request = self.world, rid(self.numbers)
        world.open.add(request)
        world.behind[request] = sum(world.engine.values())
        self.streams |= {request} if streaming else set()
        arrival = new(self.numbers, streaming=streaming, replayable=replayable, lendable=lendable)
        self.call("submit", arrival)
        if request not in world.ended:
            assert "waiting" not in world.desk_fold.values(), "own work came and did not get the place"

    @rule(numbers=st.sets(st.integers(1, 40)), tokens=st.integers(0, 2), work=st.sampled_from([0, 1000, 77]))
    def resize(self, numbers, tokens, work):
        """The sizes of some become known, of others that are known already, have ended or never came too."""
        world, sizes = self.world, {rid(number): NewSize(est_tokens=tokens, work=work) for number in numbers}
        is_news = {
            request: (tokens and request not in self.sized) or (work and work != self.works.get(request, STATED))
            for request in world.held & sizes.keys()
        }
        outputs = self.call("resize", sizes)
        told = [output for output in outputs if isinstance(output, Held)]
        assert sorted(held.request for held in told) == sorted(
            r for r, new in is_news.items() if new and world.enrolled
        )
        assert all(held.est_tokens for held in told if tokens)
        assert all(held.work == work for held in told if work)
        self.sized |= sizes.keys() & world.open if tokens else set()
        self.works |= dict.fromkeys(sizes.keys() & world.open, work) if work else {}

    @rule(on=OFTEN)
    def let_streams_be_lent(self, on):
        self.streams_on = on
        outputs = self.call("set_lending", TTL, on)
        assert {one.request for one in outputs if isinstance(one, Held)} <= self.streams

    @precondition(lambda self: self.world.open)
    @rule(data=st.data())
    def client_gone(self, data):
        self.call("client_gone", data.draw(st.sampled_from(sorted(self.world.open))))

    # -- the engine

    @precondition(lambda self: self.world.engine)
    @rule(data=st.data(), kind=st.sampled_from(["ok", "ok", "ok", "bad", "worse", "broken", "not_started"]))
    def engine_finished(self, data, kind):
        world = self.world
        request = data.draw(st.sampled_from(sorted(world.engine)))
        result = {
            "ok": EngineResult(status=200),
            "bad": EngineResult(status=400),
            "worse": EngineResult(status=500),
            "broken": EngineResult(status=200, complete=False),
            "not_started": EngineResult(status=0, complete=False, not_started=True),
        }[kind]

        def left() -> None:
            del world.engine[request]
            if kind == "not_started":
                world.paused_until_us = world.now_us + RETRY_US

        self.call("engine_finished", request, result, before=left)

    @rule(up=OFTEN)
    def set_engine_up(self, up):
        world = self.world
        world.up, world.paused_until_us = up, 0
        self.call("set_engine_up", up)
        if not up:
            world.engine.clear()

    @rule(depth=st.integers(1, 3))
    def set_depth(self, depth):
        self.world.depth = depth
        self.call("set_depth", depth)

    # -- links and leases

    @rule(owner_links=st.sets(st.sampled_from(LINKS)) | st.just({*LINKS}), helps=OFTEN)
    def set_links(self, owner_links, helps):
        world = self.world
        world.owner_links, world.helps = owner_links, helps
        if not world.enrolled:
            world.held_fold, world.engine_fold = {}, set()
        for link in set(world.leases) - owner_links:
            del world.leases[link]
        self.no_longer_early(owner_links)
        world.restating = True
        self.call("set_links", sorted(owner_links), [BACK_LINK] if helps else [])
        world.restating = False

    @rule(
        link=st.sampled_from(LINKS),
        slots=st.integers(0, 3),
        age_us=st.just(0) | st.integers(0, 40 * SECOND) | st.none(),
        step=st.sampled_from([-1, 0, 1, 1, 1, 2]),
        name=st.sampled_from(["l1", "l2"]),
        clear=st.sampled_from([False, False, False, True]),
        job_us=st.sampled_from([0, 1, SECOND, 20 * SECOND]),
        owner_job_us=st.sampled_from([0, 0, 2 * SECOND, 20 * SECOND]),
    )
    def take_lease(self, link, slots, age_us, step, name, clear, job_us, owner_job_us):
        world = self.world
        order = ("00010000", self.version + step, 0)
        self.version = max(self.version, self.version + step)
        event = (
            cleared(link, name)
            if clear
            else lease(link=link, slots=slots, name=name, job_us=job_us, owner_job_us=owner_job_us, work=1000)
        )
        sent_us = None if age_us is None else world.now_us - age_us
        newest = self.world.newest.get(link)
        stale = link in world.owner_links and newest is not None and order <= newest
        if link in world.owner_links and not stale:
            self.believe(event, order, sent_us)
        elif link not in world.owner_links and (link not in self.early or self.early[link][1] < order):
            self.early[link] = (event, order, sent_us)
        outputs = self.call("take_lease", event, order, sent_us)
        # settling may tell what was found of a kept request before; the event itself says and does nothing
        assert not stale or all(isinstance(output, Kept) for output in outputs)

    def believe(self, event: Any, order: OrderKey, sent_us: int | None) -> None:
        """Note what the owner has to make of a lease event of one of its links that is news."""
        world = self.world
        world.newest[event.link] = order
        world.leases.pop(event.link, None)
        if not isinstance(event, LeaseCleared) and sent_us is not None and sent_us + TTL > world.now_us:
            world.leases[event.link] = (event, order, sent_us + TTL)

    def no_longer_early(self, owner_links: set[LinkId]) -> None:
        """Note that what came before its link counts from now on, unless it is over or old."""
        for link in sorted(owner_links & self.early.keys()):
            event, order, sent_us = self.early.pop(link)
            newest = self.world.newest.get(link)
            if sent_us is not None and sent_us + TTL > self.world.now_us and (newest is None or order > newest):
                self.believe(event, order, sent_us)

    @rule(link=st.sampled_from(LINKS), faster=st.booleans())
    def hint(self, link, faster):
        self.version += 1
        self.world.hinted |= faster
        self.call("take_word", word(LinkPriced, link, faster=faster), ("00010000", self.version, 0))

    @rule(on=st.booleans())
    def set_hold(self, on):
        self.world.hold_on = on
        self.call("set_hold", on)

    @rule(link=st.sampled_from(LINKS))
    def stall(self, link):
        self.version += 1
        self.call("take_word", word(LeaseStalled, link, quiet_us=1), ("00010000", self.version, 0))
        left = [request for request, over in self.world.lent_fold.items() if over == link]
        known = link in self.world.owner_links
        assert not known or all(self.world.lends[request] is self.answering.get(request) for request in left)

    # -- helpers

    @precondition(lambda self: self.world.lends)
    @rule(
        data=st.data(),
        kind=st.sampled_from(
            ["accepted", "answering", "answered", "answered", "returned", "busy", "refused", "failed", "sent", "clean"]
        ),
    )
    def lend_outcome(self, data, kind):
        lend = self.world.lends[data.draw(st.sampled_from(sorted(self.world.lends)))]
        if kind == "answering":
            self.answering[lend.request] = lend
        args: dict[str, tuple[str, tuple[Any, ...]]] = {
            "accepted": ("lend_accepted", ()),
            "answering": ("lend_answering", ()),
            "answered": ("lend_answered", (LendResult(status=200, service_us=5),)),
            "returned": ("lend_returned", ("own_work",)),
            "busy": ("lend_busy", ()),
            "refused": ("lend_refused", ("helper_unreachable",)),
            "failed": ("lend_failed", (LendFailure(reason="helper_failed"),)),
            "sent": ("lend_failed", (LendFailure(reason="helper_failed", sent=True),)),
            "clean": ("lend_failed", (LendFailure(reason="helper_failed", may_have_run=False),)),
        }
        name, more = args[kind]
        may_run_again = self.made.may_run_again(lend.request)
        outputs = self.call(name, lend.request, lend.lease, *more)
        assert (lend.request in self.world.ended) == (
            kind in {"answered", "sent"} or (kind == "failed" and not may_run_again)
        )
        if kind in {"returned", "busy", "refused", "failed", "sent", "clean"}:
            assert not any(output.link == lend.link for output in outputs if isinstance(output, Lent)), (
                "asked again at once"
            )

    @rule(number=st.integers(1, 30), kind=st.sampled_from(["engine", "answered", "busy", "failed", "gone", "body"]))
    def echo(self, number, kind):
        """Something late or doubled about a request that is not in the state that it speaks of."""
        world, request, lease_id = self.world, rid(number), LeaseId("old")
        request = RequestId(max(world.lends, default=request)) if number % 2 else request
        match kind:
            case "engine" if request not in world.engine:
                outputs = self.call("engine_finished", request, EngineResult())
            case "answered":
                outputs = self.call("lend_answered", request, lease_id, LendResult())
            case "busy":
                outputs = self.call("lend_busy", request, lease_id)
            case "failed":
                outputs = self.call("lend_failed", request, lease_id, LendFailure(reason="helper_failed"))
            case "gone" if request not in world.open:
                outputs = self.call("client_gone", request)
            case "body" if request not in world.desk_fold:
                outputs = self.call("borrow_body", request)
            case _:
                return
        assert not any(
            getattr(output, "request", None) == request for output in outputs if not isinstance(output, Lend | Lent)
        )

    # -- owners that lend to us

    @rule(live=OFTEN, slots=st.integers(1, 3), again=st.sampled_from([False, False, True]))
    def borrow(self, live, slots, again):
        if again and self.world.desk_fold:
            number = int(min(self.world.desk_fold)[1:])
        else:
            self.numbers += 1
            number = self.numbers
        before = len(self.world.desk_fold)
        outputs = self.call("borrow", offer(number, slots=slots, lease_live=live))
        assert before < slots or not any(isinstance(output, BorrowAccepted) for output in outputs)

    @precondition(lambda self: self.world.bodies)
    @rule(data=st.data())
    def borrow_body(self, data):
        self.call("borrow_body", data.draw(st.sampled_from(sorted(self.world.bodies))))

    @precondition(lambda self: self.world.desk_fold)
    @rule(data=st.data())
    def borrower_gone(self, data):
        self.call("borrower_gone", data.draw(st.sampled_from(sorted(self.world.desk_fold))))

    # -- time

    @rule(step_us=st.integers(0, 20 * SECOND))
    def time_passes(self, step_us):
        self.pass_time(self.world.now_us + step_us)

    def pass_time(self, until_us: int) -> None:
        """Tick at every timer on the way."""
        for _ in range(10_000):
            due_us = self.made.next_timer_us()
            if due_us is None or due_us > until_us:
                break
            assert due_us >= self.world.now_us, "a timer that was due already"
            self.world.now_us = max(self.world.now_us, due_us)
            self.call("tick")
        else:
            raise AssertionError("a timer that never gets done")
        self.world.now_us = until_us

    # -- what always holds

    @invariant()
    def the_engine_never_idles_while_a_request_is_held(self):
        if self.world.engine_usable and self.world.held:
            assert len(self.world.engine) >= self.world.least

    @invariant()
    def the_snapshot_is_the_fold_of_the_facts(self):
        queue, desk = self.made.snapshot(self.world.now_us)
        world = self.world
        told = {
            request.request: (request.state, request.lendable and request.state == "held") for request in queue.requests
        }
        fold: dict[str, tuple[str, bool]] = dict.fromkeys(world.lent_fold, ("lent", False))
        fold |= {request: ("held", lendable) for request, lendable in world.held_fold.items()}
        fold |= dict.fromkeys(world.engine_fold, ("engine", False))
        assert told == fold
        assert {request.request: request.state for request in desk.requests} == world.desk_fold

    @invariant()
    def what_the_facts_tell_is_what_the_actions_did(self):
        world = self.world
        assert set(world.lent_fold) == set(world.lends)
        if world.enrolled:
            assert set(world.held_fold) == world.held
            assert world.engine_fold == {request for request, borrowed in world.engine.items() if not borrowed}
        counts = self.made.counts()
        assert (counts.held, counts.in_engine) == (len(world.held), len(world.engine))
        assert (counts.lent, counts.borrowed) == (len(world.lends), len(world.desk_fold))

    @invariant()
    def no_two_copies_of_a_request_run(self):
        assert not set(self.world.engine) & set(self.world.lends)

    def teardown(self) -> None:
        self.everything_ends_once_the_faults_end()
        self.the_same_inputs_give_the_same_outputs()

    def everything_ends_once_the_faults_end(self) -> None:
        world = self.world
        self.set_engine_up(True)
        for _ in range(200):
            if not world.open and not world.desk_fold:
                break
            for lend in list(world.lends.values()):
                if lend.request in world.lends:
                    self.call("lend_answered", lend.request, lend.lease, LendResult())
            for request in sorted(world.bodies):
                self.call("borrow_body", request)
            for request in sorted(world.engine):

                def left(request: str = request) -> None:
                    del world.engine[request]

                self.call("engine_finished", request, EngineResult(), before=left)
            self.pass_time(world.now_us + SECOND)
        assert self.made.idle
        assert not world.open
        self.pass_time(world.now_us + 2 * TTL)
        assert self.made.next_timer_us() is None, "something waits for nothing"

    def the_same_inputs_give_the_same_outputs(self) -> None:
        again = self._make()
        for (name, args), outputs in zip(self.inputs, self.outputs, strict=True):
            assert msgspec.json.encode(getattr(again, name)(*args)) == msgspec.json.encode(outputs)


TestRuntime = RuntimeMachine.TestCase
TestRuntime.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
