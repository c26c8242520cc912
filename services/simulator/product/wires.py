"""What travels between owners and helpers: a lend's headers, the go-ahead, its body, and what comes back.

Each takes one hop. A node that is down answers nothing; its broken connections are noticed a little later.
"""

from typing import TYPE_CHECKING, Final

from domain.actions import Lend, RefuseBorrow
from domain.ids import RequestId
from domain.inputs import BorrowOffer, LendFailure, LendResult
from services.simulator.product.names import number_of, us

if TYPE_CHECKING:
    from services.simulator.product.cluster import Cluster, VirtualNode

_BLACK_HOLE_US: Final = 200_000
_NOTICED_US: Final = 100_000


class Wires:
    """Every lend that is under way, by its request."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._hop_us = us(cluster.scenario.hop_s)
        self._lends: dict[RequestId, tuple[VirtualNode, Lend]] = {}

    def lend(self, owner: "VirtualNode", lend: Lend) -> None:
        """Send the headers of a lend."""
        self._lends[lend.request] = (owner, lend)
        self._later(self._offer, lend)

    def _later(self, what: object, *arguments: object, hops: int = 1) -> None:
        self._cluster.time.after(hops * self._hop_us, what, *arguments)  # type: ignore[arg-type]  # a method of ours

    def _offer(self, lend: Lend) -> None:
        helper = self._cluster.nodes[number_of(lend.grant.helper)]
        if helper.number in self._cluster.scenario.black_holes:
            self._cluster.time.after(_BLACK_HOLE_US, self._fail, lend, "helper_error")
            return
        if not helper.alive:
            self._later(self._unreachable, lend)
            return
        offer = BorrowOffer(
            request=lend.request,
            owner=lend.grant.owner,
            link=lend.link,
            lease=lend.lease,
            work=self._cluster.work_of(lend.request),
            slots=lend.grant.slots,
            remaining_us=lend.remaining_us - self._hop_us,
        )
        self._cluster.do(helper, helper.runtime.borrow(offer, self._cluster.time.now_us))

    def accept(self, helper: "VirtualNode", request: RequestId) -> None:
        """Say 100 Continue; the body comes after it."""
        self._later(self._go_ahead, request)
        self._later(self._body, helper, helper.life, request, hops=2)

    def _go_ahead(self, request: RequestId) -> None:
        if request in self._lends:
            owner, lend = self._lends[request]
            self._cluster.do(owner, owner.runtime.lend_accepted(request, lend.lease, self._cluster.time.now_us))

    def _body(self, helper: "VirtualNode", life: int, request: RequestId) -> None:
        if helper.alive and helper.life == life:
            self._cluster.do(helper, helper.runtime.borrow_body(request, self._cluster.time.now_us))

    def refuse(self, refusal: RefuseBorrow) -> None:
        """Answer a lend that has not started."""
        self._later(self._refused, refusal)

    def _refused(self, refusal: RefuseBorrow) -> None:
        if refusal.request not in self._lends:
            return
        owner, lend = self._lends.pop(refusal.request)
        now_us = self._cluster.time.now_us
        match refusal.status:
            case 409:
                outputs = owner.runtime.lend_returned(refusal.request, lend.lease, "own_work", now_us)
            case 503:
                outputs = owner.runtime.lend_busy(refusal.request, lend.lease, now_us)
            case _:
                outputs = owner.runtime.lend_refused(refusal.request, lend.lease, refusal.code, now_us)
        self._cluster.do(owner, outputs)

    def served(self, helper: "VirtualNode", request: RequestId, took_us: int) -> None:
        """Send the answer home, if the request is another node's."""
        if request in self._lends and self._lends[request][0] is not helper:
            self._later(self._answered, request, took_us)

    def _answered(self, request: RequestId, took_us: int) -> None:
        if request in self._lends:
            owner, lend = self._lends.pop(request)
            answer = LendResult(status=200, service_us=took_us)
            self._cluster.do(owner, owner.runtime.lend_answered(request, lend.lease, answer, self._cluster.time.now_us))

    def break_off(self, helper: "VirtualNode") -> None:
        """Break the connections of all that is lent to a node that went down."""
        for request in sorted(self._lends):
            _, lend = self._lends[request]
            if lend.grant.helper == helper.name:
                self._cluster.time.after(_NOTICED_US, self._fail, lend, "helper_failed")

    def _fail(self, lend: Lend, reason: str) -> None:
        owner = self._take(lend)
        if owner is not None:
            failure = LendFailure(reason=reason)
            now_us = self._cluster.time.now_us
            self._cluster.do(owner, owner.runtime.lend_failed(lend.request, lend.lease, failure, now_us))

    def _unreachable(self, lend: Lend) -> None:
        owner = self._take(lend)
        if owner is not None:
            now_us = self._cluster.time.now_us
            outputs = owner.runtime.lend_refused(lend.request, lend.lease, "helper_unreachable", now_us)
            self._cluster.do(owner, outputs)

    def _take(self, lend: Lend) -> "VirtualNode | None":
        """Take a lend off the wire; None if it is over, or under way under another lease."""
        owner, current = self._lends.get(lend.request, (None, None))
        if current is not lend:
            return None
        del self._lends[lend.request]
        return owner
