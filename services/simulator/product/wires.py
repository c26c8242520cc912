"""What travels between owners and helpers: a lend's headers, the go-ahead, its body, and what comes back.

Each takes one hop. A node that is down answers nothing; its broken connections are noticed a little later. One that hangs
finds what was sent to it when it comes to itself. An answer begins with its service, as a stream's does
and as the model has it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from domain.actions import CancelLend, Lend, RefuseBorrow
from domain.ids import ModelId, RequestId
from domain.inputs import BorrowOffer, LendFailure, LendResult

if TYPE_CHECKING:
    from services.simulator.product.machines import MachineNode
    from services.simulator.product.virtual import VirtualCluster

_NOTICED_US: Final = 100_000


class Wires:
    """Every lend that is under way, by its request."""

    def __init__(self, cluster: "VirtualCluster[Any]", hop_us: int) -> None:
        self._cluster, self._hop_us = cluster, hop_us
        self._lends: dict[RequestId, tuple[MachineNode, Lend]] = {}

    def lend(self, owner: "MachineNode", lend: Lend) -> None:
        """Send the headers of a lend."""
        self._lends[lend.request] = (owner, lend)
        self._cluster.time.after(self._hop_us, self._offer, lend)

    def _send(self, node: "MachineNode", what: Callable[..., None], *arguments: Any, hops: int = 1) -> None:
        """Let `what` happen at `node` when it gets there; if it restarts meanwhile, it never does."""
        self._cluster.later(node, hops * self._hop_us, what, *arguments)

    # -- to the helper

    def _offer(self, lend: Lend) -> None:
        helper = self._cluster.node_of(lend.grant.helper)
        if not helper.alive:
            owner, _ = self._lends[lend.request]
            self._send(owner, self._unreachable, lend)
        else:
            self._cluster.later(helper, 0, self._offered, helper, lend)

    def _offered(self, helper: "MachineNode", lend: Lend) -> None:
        if not self._is_on(lend):
            return
        may_load, restore = self._cluster.link_flags(lend.link)
        offer = BorrowOffer(
            request=lend.request,
            owner=lend.grant.owner,
            link=lend.link,
            lease=lend.lease,
            work=self._cluster.work_of(lend.request),
            slots=lend.grant.slots,
            remaining_us=lend.remaining_us - self._hop_us,
            may_load=may_load,
            restore=restore,
        )
        runtime = helper.runtimes[ModelId(lend.grant.helper_model)]
        self._cluster.do(helper, runtime.borrow(offer, self._cluster.time.now_us))

    def accept(self, helper: "MachineNode", request: RequestId) -> None:
        """Say 100 Continue; the body comes after it."""
        if request in self._lends:
            owner, lend = self._lends[request]
            self._send(owner, self._go_ahead, lend)
            self._send(helper, self._body, helper, lend, hops=2)

    def _go_ahead(self, lend: Lend) -> None:
        if self._is_on(lend):
            owner, _ = self._lends[lend.request]
            runtime = owner.runtimes[lend.grant.owner_model]
            self._cluster.do(owner, runtime.lend_accepted(lend.request, lend.lease, self._cluster.time.now_us))

    def _body(self, helper: "MachineNode", lend: Lend) -> None:
        if self._is_on(lend):
            runtime = helper.runtimes[ModelId(lend.grant.helper_model)]
            self._cluster.do(helper, runtime.borrow_body(lend.request, self._cluster.time.now_us))

    def cancel(self, owner: "MachineNode", cancel: CancelLend) -> None:
        """Close a lend's connection from the owner's side."""
        taken = self._lends.get(cancel.request)
        if taken is not None and taken[0] is owner and taken[1].lease == cancel.lease:
            del self._lends[cancel.request]
            self._close(taken[1], self._hop_us)

    def _close(self, lend: Lend, after_us: int) -> None:
        helper = self._cluster.node_of(lend.grant.helper)
        if helper.alive:
            self._cluster.later(helper, after_us, self._gone, helper, lend)

    def _gone(self, helper: "MachineNode", lend: Lend) -> None:
        runtime = helper.runtimes[ModelId(lend.grant.helper_model)]
        self._cluster.do(helper, runtime.borrower_gone(lend.request, self._cluster.time.now_us))

    # -- to the owner

    def refuse(self, refusal: RefuseBorrow) -> None:
        """Answer a lend that has not started."""
        if refusal.request in self._lends:
            owner, lend = self._lends[refusal.request]
            self._send(owner, self._refused, lend, refusal)

    def _refused(self, lend: Lend, refusal: RefuseBorrow) -> None:
        owner = self._take(lend)
        if owner is None:
            return
        runtime, now_us = owner.runtimes[lend.grant.owner_model], self._cluster.time.now_us
        match refusal.status:
            case 409:
                outputs = runtime.lend_returned(lend.request, lend.lease, refusal.reason or refusal.code, now_us)
            case 503:
                outputs = runtime.lend_busy(lend.request, lend.lease, now_us)
            case _:
                outputs = runtime.lend_refused(lend.request, lend.lease, refusal.code, now_us)
        self._cluster.do(owner, outputs)

    def begun(self, helper: "MachineNode", request: RequestId) -> None:
        """Let the owner see the answer begin, if the request is another node's."""
        if request in self._lends and self._lends[request][0] is not helper:
            owner, lend = self._lends[request]
            self._send(owner, self._answering, lend)

    def _answering(self, lend: Lend) -> None:
        if self._is_on(lend):
            owner, _ = self._lends[lend.request]
            runtime = owner.runtimes[lend.grant.owner_model]
            self._cluster.do(owner, runtime.lend_answering(lend.request, lend.lease, self._cluster.time.now_us))

    def served(self, helper: "MachineNode", request: RequestId, took_us: int, status: int) -> None:
        """Send the answer home, if the request is another node's."""
        if request in self._lends and self._lends[request][0] is not helper:
            owner, lend = self._lends[request]
            self._send(owner, self._answered, lend, took_us, status)

    def _answered(self, lend: Lend, took_us: int, status: int) -> None:
        if not self._is_on(lend):
            return
        if status != 200:
            self._fail(lend, "helper_error")
            return
        owner, _ = self._lends.pop(lend.request)
        answer = LendResult(status=200, service_us=took_us)
        runtime = owner.runtimes[lend.grant.owner_model]
        self._cluster.do(owner, runtime.lend_answered(lend.request, lend.lease, answer, self._cluster.time.now_us))

    def break_off(self, node: "MachineNode") -> None:
        """Break the connections of a node that went down: those of what is lent to it, and of what it has lent."""
        for request in sorted(self._lends):
            owner, lend = self._lends[request]
            if lend.grant.helper == node.name:
                self._cluster.later(owner, _NOTICED_US, self._fail, lend, "helper_failed")
            elif owner is node:
                del self._lends[request]
                self._close(lend, _NOTICED_US)

    def _fail(self, lend: Lend, reason: str) -> None:
        owner = self._take(lend)
        if owner is not None:
            runtime, now_us = owner.runtimes[lend.grant.owner_model], self._cluster.time.now_us
            failure = LendFailure(reason=reason)
            self._cluster.do(owner, runtime.lend_failed(lend.request, lend.lease, failure, now_us))

    def _unreachable(self, lend: Lend) -> None:
        owner = self._take(lend)
        if owner is not None:
            runtime, now_us = owner.runtimes[lend.grant.owner_model], self._cluster.time.now_us
            self._cluster.do(owner, runtime.lend_refused(lend.request, lend.lease, "helper_unreachable", now_us))

    def _is_on(self, lend: Lend) -> bool:
        """Tell whether the lend is under way still, and not over, or its request under way again under another lease."""
        taken = self._lends.get(lend.request)
        return taken is not None and taken[1] is lend

    def _take(self, lend: Lend) -> "MachineNode | None":
        """Take a lend off the wire; None if it is over."""
        if not self._is_on(lend):
            return None
        owner, _ = self._lends.pop(lend.request)
        return owner
