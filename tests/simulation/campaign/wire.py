"""HTTP between owners and helpers, one connection a lend: head, 100 Continue, body, answer; and what may go wrong at each step.

It follows adapters.http.upstream, services.node.lending and services.node.desk: what each failure means to the machines.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from domain.actions import Lend, RefuseBorrow
from domain.events.decision import LeaseEvent
from domain.ids import LeaseId, ModelId, RequestId
from domain.inputs import BorrowOffer, EngineResult, LendFailure, LendResult

if TYPE_CHECKING:
    from tests.simulation.campaign.engine import Entry
    from tests.simulation.campaign.node import NodeLife
    from tests.simulation.campaign.world import World

FIRST_TOKEN_US = 150_000
CONTINUE_US, CONNECT_US = 5_000_000, 10_000_000
OUTCOMES = {"offload_returned": "returned", "offload_busy": "busy"}


class HttpWeather(msgspec.Struct, frozen=True, kw_only=True):
    """How often a lend meets what, in thousandths."""

    refused: int = 0
    black_hole: int = 0
    cut_before_100: int = 0
    cut_after_100: int = 0
    cut_in_answer: int = 0
    slow: int = 0
    replayed: int = 0


CALM_HTTP = HttpWeather()


class Connection:
    """One lend under way, as both sides see it."""

    def __init__(self, wire: "Wire", number: int, owner: "NodeLife", lend: Lend, fate: str) -> None:
        self.wire, self.number, self.owner, self.lend, self.fate = wire, number, owner, lend, fate
        self.request: RequestId = lend.request
        self.model: ModelId = lend.grant.helper_model
        self.helper: NodeLife | None = None
        self.owner_open, self.helper_open = True, False
        self.asked = False
        """The owner has got the 100."""
        self.sent = False
        """Something of the answer went to the client."""
        self.grant = b""
        self.ghost = False
        """A copy of a head that somebody sent again; nobody waits for its answer."""
        self._due = {True: 0, False: 0}

    # -- what travels

    def _to_helper(self, what: Callable[[], None], delay_us: int = 0) -> None:
        self._travel(what, to_helper=True, delay_us=delay_us)

    def _to_owner(self, what: Callable[[], None], delay_us: int = 0) -> None:
        self._travel(what, to_helper=False, delay_us=delay_us)

    def _travel(self, what: Callable[[], None], *, to_helper: bool, delay_us: int) -> None:
        loop = self.wire.world.loop
        due_us = max(self._due[to_helper], loop.now_us + self.wire.hop_us(self.fate) + delay_us)
        self._due[to_helper] = due_us
        loop.after(due_us - loop.now_us, self._arrive, what, to_helper)

    def _arrive(self, what: Callable[[], None], to_helper: bool) -> None:
        if self.wire.parted(self.owner.name, self.lend.grant.helper):
            self.wire.waiting.append((self, what, to_helper))
            return
        life = self.helper if to_helper else self.owner
        if life is not None:
            self.wire.world.loop.after(0, what, process=life.process)

    # -- the owner's side

    def open(self) -> None:
        world, helper = self.wire.world, self.lend.grant.helper
        if self.wire.parted(self.owner.name, helper) and not self.ghost:
            world.loop.after(CONNECT_US, self._unreachable, process=self.owner.process)
            return
        self.helper = world.nodes[helper].life
        if self.helper is None or self.fate == "refused":
            world.loop.after(1_000, self._unreachable, process=self.owner.process)
            return
        if not self.ghost:
            world.loop.after(CONTINUE_US, self._no_100, process=self.owner.process)
        if self.fate != "black_hole":
            self._to_helper(self._head)

    def _no_100(self) -> None:
        if not self.asked:
            self._unreachable()

    def _unreachable(self) -> None:
        if self.owner_open:
            self.close()
            self._tell("lend_refused", "helper_unreachable")

    def _tell(self, name: str, *arguments: object) -> None:
        """Tell the owner's machines how it went."""
        owner = self.owner
        if owner.process.dead:
            return
        runtime = owner.runtimes[self.lend.grant.owner_model]
        owner.do(getattr(runtime, name)(self.request, self.lend.lease, *arguments, owner.now()))

    def close(self) -> None:
        """The owner closes the connection: from now on no answer can come over it."""
        if self.owner_open:
            self.owner_open = False
            self._to_helper(self._owner_gone)

    def _continue(self) -> None:
        if not self.owner_open:
            return
        self.asked = True
        self._tell("lend_accepted")
        if self.fate == "cut_after_100":
            self._reset()
        else:
            self._to_helper(self._body, self.wire.body_us(self.fate))

    def _reset(self) -> None:
        """The connection breaks under both of them."""
        self._to_owner(self._lost)
        self._to_helper(self._owner_gone)

    def _lost(self) -> None:
        if not self.owner_open:
            return
        self.close()
        if self.asked:
            self._tell("lend_failed", LendFailure(reason="helper_failed", sent=self.sent))
        else:
            self._tell("lend_refused", "helper_unreachable")

    def helper_died(self) -> None:
        self._to_owner(self._lost)

    def _head_of_answer(self) -> None:
        if not self.owner_open:
            return
        self.sent = self.sent or self.wire.world.clients.is_stream(self.request)
        self._tell("lend_answering")

    def _answer(self, outcome: str, status: int, reason: str, took_us: int) -> None:
        """What services.node.lending makes of an answer."""
        if not self.owner_open:
            return
        clients, owner = self.wire.world.clients, self.owner
        again = owner.runtimes[self.lend.grant.owner_model].may_run_again(self.request)
        self.close()
        match outcome:
            case "returned":
                self._tell("lend_returned", reason)
            case "busy":
                self._tell("lend_busy")
            case "refused":
                self._tell("lend_refused", "no_live_lease" if reason == "no_live_lease" else "forward_failed")
            case "answered" if status < 500 or not again:
                clients.answered(owner, self.request, status)
                self._tell("lend_answered", LendResult(status=status, service_us=took_us))
            case _:
                failure = LendFailure(reason="helper_error", poison=outcome == "failed", sent=self.sent)
                self._tell("lend_failed", failure)

    # -- the helper's side

    def _head(self) -> None:
        helper = self.helper
        assert helper is not None
        self.helper_open = True
        if self.fate == "cut_before_100":
            self._to_owner(self._lost)
            self._to_helper(self._owner_gone)
        event = self._checked()
        if event is None or self.model not in helper.runtimes:
            self._final("refused", 403, "no_live_lease")
            return
        live = helper.copies.live(self.lend.link, self.lend.lease, helper.now())
        link = helper.view.link(self.lend.link)
        offer = BorrowOffer(
            request=self.request,
            owner=self.lend.grant.owner,
            link=self.lend.link,
            lease=self.lend.lease,
            work=self.wire.world.work_of(self.request),
            slots=live.slots if live is not None else 0,
            remaining_us=self.lend.remaining_us // 1000 * 1000,
            lease_live=live is not None and link is not None,
            may_load=link is not None and link.load_if_unloaded,
            restore=link is not None and link.restore_after_borrow,
        )
        if self.request in helper.borrowed:
            self._final("refused", 409, "offload_duplicate")
            return
        helper.offering = self
        try:
            helper.do(helper.runtimes[self.model].borrow(offer, helper.now()))
        finally:
            helper.offering = None

    def _checked(self) -> LeaseEvent | None:
        """Return the lease event that the head shows, if it is the master's and about this lend."""
        helper = self.helper
        assert helper is not None
        signed = helper.reader.read(self.grant)
        event = signed.lease if signed is not None else None
        if signed is None or event is None or (event.lease, event.helper) != (self.lend.lease, helper.name):
            return None
        helper.copies.take(signed, helper.now())
        return event

    def accepted(self) -> None:
        self._to_owner(self._continue)
        if self.ghost:  # whoever sends it again has the body as well
            self._to_helper(self._body)
        elif self.fate == "replayed":
            self.wire.replay(self)

    def refused(self, action: RefuseBorrow, reason: str) -> None:
        self._final(OUTCOMES.get(action.code, "refused"), action.status, reason or action.code)

    def _final(self, outcome: str, status: int, reason: str, took_us: int = 0) -> None:
        """The helper answers and closes."""
        helper = self.helper
        self.helper_open = False
        if helper is not None and helper.borrowed.get(self.request) is self:
            del helper.borrowed[self.request]
        self._to_owner(lambda: self._answer(outcome, status, reason, took_us))

    def _body(self) -> None:
        if self.helper_open and self.helper is not None:
            self.helper.do(self.helper.runtimes[self.model].borrow_body(self.request, self.helper.now()))

    def _owner_gone(self) -> None:
        helper = self.helper
        if not self.helper_open or helper is None:
            return
        self.helper_open = False
        if helper.borrowed.get(self.request) is self:
            helper.do(helper.runtimes[self.model].borrower_gone(self.request, helper.now()))
            if self.request not in helper.inside:
                helper.borrowed.pop(self.request, None)

    def answer_begins(self) -> None:
        if not self.helper_open or not self.wire.world.clients.is_stream(self.request):
            return
        self.wire.world.loop.after(FIRST_TOKEN_US, self._first_token)
        if self.fate == "cut_in_answer":
            self.wire.world.loop.after(self.wire.cut_us(), self._reset)

    def _first_token(self) -> None:
        if self.helper_open:
            self._to_owner(self._head_of_answer)

    def engine_left(self, result: EngineResult, took_us: int) -> None:
        """The engine is done with it: the helper's handler answers, if anybody still listens."""
        if not self.helper_open:
            if self.helper is not None and self.helper.borrowed.get(self.request) is self:
                del self.helper.borrowed[self.request]
            return
        if self.fate == "cut_in_answer" and result.complete:
            self._reset()
        if result.complete:
            self._final("answered", result.status, "", took_us)
        elif result.not_started:
            self._final("refused", 503, "model_unavailable")
        else:
            self._final("failed", 502, "engine_failed")


class Wire:
    """Every connection between nodes."""

    def __init__(self, world: "World", dice: random.Random) -> None:
        self.world, self._dice = world, dice
        self.weather = CALM_HTTP
        self.by_request: dict[RequestId, list[Connection]] = {}
        self.waiting: list[tuple[Connection, Callable[[], None], bool]] = []
        self.partitions: set[frozenset[str]] = set()
        self.black_holes: set[str] = set()
        self._count = 0

    def hop_us(self, fate: str) -> int:
        return self._dice.randint(10_000, 900_000) if fate == "slow" else self._dice.randint(200, 900)

    def cut_us(self) -> int:
        """Return when an answer is cut: before the first token, or after it."""
        return self._dice.choice((FIRST_TOKEN_US // 2, FIRST_TOKEN_US * 3 // 2))

    def body_us(self, fate: str) -> int:
        return self._dice.randint(1_000_000, 12_000_000) if fate == "slow" else 0

    def parted(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self.partitions

    def join(self, one: str, other: str) -> None:
        """End a partition: what was on its way arrives."""
        self.partitions.discard(frozenset((one, other)))
        waiting, self.waiting = self.waiting, []
        for connection, what, to_helper in waiting:
            connection._arrive(what, to_helper)

    def lend(self, owner: "NodeLife", lend: Lend) -> None:
        """Open a connection for a lend."""
        grant = owner.copies.shown(lend.link, lend.lease)
        connection = self._new(owner, lend, self._fate(lend.grant.helper))
        if grant is None:
            connection.owner_open = False
            self.world.loop.after(0, connection._tell, "lend_refused", "no_live_lease", process=owner.process)
            return
        connection.grant = grant
        connection.open()

    def _new(self, owner: "NodeLife", lend: Lend, fate: str) -> Connection:
        self._count += 1
        connection = Connection(self, self._count, owner, lend, fate)
        self.by_request.setdefault(lend.request, []).append(connection)
        return connection

    def _fate(self, helper: str) -> str:
        throw = self._dice.randrange(1000)
        if helper in self.black_holes:
            return "black_hole"
        for name in HttpWeather.__struct_fields__:
            throw -= getattr(self.weather, name)
            if throw < 0:
                return name
        return ""

    def replay(self, connection: Connection) -> None:
        """Somebody sends a copy of a lend's head again, soon or late, and then its body."""
        later_us = connection.lend.remaining_us * 10 // 9 + 50_000
        self.world.loop.after(self._dice.choice((5_000, 800_000, 4_000_000, later_us)), self._ghost, connection)

    def _ghost(self, connection: Connection) -> None:
        helper = self.world.nodes[connection.lend.grant.helper].life
        if helper is None or helper is not connection.helper:
            return  # a new process remembers nothing of what the last one started
        ghost = self._new(connection.owner, connection.lend, "")
        ghost.ghost, ghost.grant, ghost.owner_open = True, connection.grant, False
        ghost.open()

    def close(self, request: RequestId, lease: LeaseId) -> None:
        """The owner closes the connection of a lend."""
        for connection in self.by_request.get(request, ()):
            if connection.lend.lease == lease:
                connection.close()

    def fenced(self, request: RequestId) -> bool:
        """Tell whether no answer can come from any helper any more."""
        return not any(connection.owner_open for connection in self.by_request.get(request, ()))

    def is_given_up(self, entry: "Entry") -> bool:
        """Tell whether the owner has closed the connection over which an engine was given a request."""
        connections = self.by_request.get(entry.request, ())
        return any(one.number == entry.connection and not one.owner_open and not one.ghost for one in connections)

    def machine_died(self, life: "NodeLife") -> None:
        """The kernel closes the connections of a process that is gone."""
        for connections in self.by_request.values():
            for connection in connections:
                if connection.owner is life:
                    connection.close()
                elif connection.helper is life:
                    connection.helper_open = False
                    connection.helper_died()
