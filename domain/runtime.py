"""One model on one node: its owner's queue and its helper's desk, which share one engine.

The node service and the simulator drive it. Each input is a method that takes `now_us` (monotonic) and returns facts and
actions in the order in which they are to be stated and done. Inputs about a request that is not (or no longer) in the
state they speak of are late echoes: they change nothing and return an empty list.

    runtime = ModelRuntime(RuntimeConfig(node=..., model=..., slots=1, depth=2))
    outputs = runtime.set_links({link_a}, {link_b}, now_us)
    outputs = runtime.submit(NewRequest(request=..., work=...), now_us)     # [Started, Dispatch] or [Held] or [Held, Lent, Lend]
    outputs = runtime.engine_finished(request, EngineResult(status=200), now_us)
    ... and at next_timer_us(): outputs = runtime.tick(now_us)
"""

from collections.abc import Collection

from domain.actions import Action, Dispatch, Lend, OrderKey, Output, Refuse
from domain.events import DeskState, QueueState
from domain.events.decision import LeaseEvent
from domain.ids import LeaseId, LinkId, RequestId
from domain.inputs import BorrowOffer, EngineResult, LendFailure, LendResult, NewRequest, RuntimeConfig

__all__ = [
    "Action",
    "BorrowOffer",
    "Dispatch",
    "EngineResult",
    "Lend",
    "LendFailure",
    "LendResult",
    "ModelRuntime",
    "NewRequest",
    "Output",
    "Refuse",
    "RuntimeConfig",
]


class ModelRuntime:
    """Decides what happens to every request of one model on one node. Pure: same inputs, same outputs."""

    def __init__(self, config: RuntimeConfig) -> None:
        self.config = config

    # -- the client's side ------------------------------------------------------------------------------------------

    def submit(self, new: NewRequest, now_us: int) -> list[Output]:
        """Take a client's request: `Dispatch`, `Lend`, held (no action yet), or `Refuse` (503 queue_full or model_unavailable)."""
        raise NotImplementedError

    def client_gone(self, request: RequestId, now_us: int) -> list[Output]:
        """The client closed its connection: a held request leaves, a running one is cancelled where it runs.

        In the engine: `CancelEngine`; the terminal fact comes with `engine_finished`. Lent: `CancelLend`, and it is over.
        """
        raise NotImplementedError

    # -- the own engine ---------------------------------------------------------------------------------------------

    def engine_finished(self, request: RequestId, result: EngineResult, now_us: int) -> list[Output]:
        """The engine is done with the request, own or borrowed: answered, failed or cancelled. Exactly once for each `Dispatch`.

        A failed own request gives `Refuse` 502 engine_failed (an error event if bytes were sent). An answer with an error
        status is passed on unchanged by the node: no action.
        """
        raise NotImplementedError

    def set_engine_up(self, up: bool, now_us: int) -> list[Output]:  # noqa: FBT001  # the state itself
        """The engine came up, or it is dead (exited, refused): not merely slow, for work in flight is proof of life.

        Down: all requests inside fail, 502 engine_failed (`Refuse`; borrowed ones end as not ok, answer the owner 502);
        `engine_finished` of them is ignored from then on. Held ones wait.
        """
        raise NotImplementedError

    # -- lending ----------------------------------------------------------------------------------------------------

    def set_links(self, owner_links: Collection[LinkId], helper_links: Collection[LinkId], now_us: int) -> list[Output]:
        """Say in which links the model is the owner's and in which the helper's. In any: it is enrolled."""
        raise NotImplementedError

    def take_lease(self, event: LeaseEvent, order: OrderKey, basis_sent_us: int | None, now_us: int) -> list[Output]:
        """Take a lease event that names this model as owner; its signature has been checked.

        `basis_sent_us`: when this process sent the fact that the event cites, on the same clock as `now_us`; None if unknown.
        """
        raise NotImplementedError

    def lend_accepted(self, request: RequestId, lease: LeaseId, now_us: int) -> list[Output]:
        """The helper said 100 Continue. From here on a stream is unrepeatable."""
        raise NotImplementedError

    def lend_answered(self, request: RequestId, lease: LeaseId, result: LendResult, now_us: int) -> list[Output]:
        """The helper's answer was passed on whole. For a 5xx ask `may_run_again` first, and if so call `lend_failed`."""
        raise NotImplementedError

    def lend_returned(self, request: RequestId, lease: LeaseId, reason: str, now_us: int) -> list[Output]:
        """409 offload_returned: it has not started there."""
        raise NotImplementedError

    def lend_busy(self, request: RequestId, lease: LeaseId, now_us: int) -> list[Output]:
        """503 offload_busy: the desk is full; it has not started there."""
        raise NotImplementedError

    def lend_refused(self, request: RequestId, lease: LeaseId, reason: str, now_us: int) -> list[Output]:
        """It could not be passed on and provably did not start: no_live_lease (403), helper_unreachable, forward_failed."""
        raise NotImplementedError

    def lend_failed(self, request: RequestId, lease: LeaseId, failure: LendFailure, now_us: int) -> list[Output]:
        """The helper failed after it may have begun; it is fenced. Runs again here if it may, else `Refuse` 502."""
        raise NotImplementedError

    def may_run_again(self, request: RequestId) -> bool:
        """Return whether a lent request may run at its owner if its helper fails now, nothing having been sent to the client."""
        raise NotImplementedError

    # -- borrowing --------------------------------------------------------------------------------------------------

    def borrow(self, offer: BorrowOffer, now_us: int) -> list[Output]:
        """The headers of a lend came: `AcceptBorrow` or `RefuseBorrow`."""
        raise NotImplementedError

    def borrow_body(self, request: RequestId, now_us: int) -> list[Output]:
        """The body is whole and its hash right: it may start. `Dispatch`, or it waits, and may yet get `RefuseBorrow` 409."""
        raise NotImplementedError

    def borrower_gone(self, request: RequestId, now_us: int) -> list[Output]:
        """The owner closed the connection, or its body was broken: an unstarted one leaves, a running one is cancelled."""
        raise NotImplementedError

    # -- time and the rest ------------------------------------------------------------------------------------------

    def set_depth(self, depth: int, now_us: int) -> list[Output]:
        """Change `scheduling_backend_depth`. What is inside the engine stays there."""
        raise NotImplementedError

    def tick(self, now_us: int) -> list[Output]:
        """Do what is due at `now_us`: lease ends, wait bounds, the sign of life."""
        raise NotImplementedError

    def next_timer_us(self) -> int | None:
        """Return when `tick` is due next; None if nothing waits for time."""
        raise NotImplementedError

    def drain(self, now_us: int) -> list[Output]:
        """Take nothing new from now on; what is held or running ends, unstarted borrowed work is handed back."""
        raise NotImplementedError

    @property
    def idle(self) -> bool:
        """Whether no request is here, own or borrowed: the end of a drain."""
        raise NotImplementedError

    def snapshot(self, now_us: int) -> tuple[QueueState, DeskState]:
        """Return all open requests, as the facts stated so far tell them."""
        raise NotImplementedError
