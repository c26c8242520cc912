"""What a node measures: its facts as it states them, and its queues, leases and engines when somebody asks."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from domain.events import (
    BorrowAccepted,
    BorrowBusy,
    BorrowFinished,
    BorrowReturned,
    Cancelled,
    CutOff,
    Expired,
    Fact,
    Failed,
    Finished,
    LeaseRefused,
    LendAnswered,
    LendBusy,
    LendReturned,
    Lent,
    Loaded,
    LoadFailed,
    NativeWaited,
    Rejected,
    RelayRefused,
    Restored,
)
from domain.ids import ModelId
from services.node.own_work import Served
from services.telemetry.answer import instruments
from services.telemetry.instruments import Reading

_US: Final = 1_000_000


class NodeMetrics:
    """The instruments of one node."""

    def __init__(self, models: "dict[ModelId, Served]", draining: Callable[[], bool]) -> None:
        """Measure `models`; what is of the bus is added by `services.node.wires`."""
        self.instruments = instruments("node")
        self._models = models
        self._takes: dict[type[Any], Callable[[Any], None]] = _takers(self)
        self.instruments.state("leaseway_draining", draining)
        for name, of_one in _LOOKED_AT.items():
            self.instruments.read(name, self._each(of_one))

    def fact(self, fact: Fact) -> None:
        """Measure what a stated fact says."""
        self.instruments.add("leaseway_facts_total")
        take = self._takes.get(type(fact))
        if take is not None:
            take(fact)

    def answered(self, model: ModelId, after_s: float) -> None:
        """Take after what time the first byte of an answer left."""
        self.instruments.observe("leaseway_time_to_first_token_seconds", after_s, model)

    def _each(self, of_one: Callable[[Served], float]) -> Callable[[], Reading]:
        return lambda: [((str(model),), float(of_one(served))) for model, served in sorted(self._models.items())]

    def ended(self, outcome: str) -> Callable[[Any], None]:
        """Return what takes terminal facts of an own request."""

        def take(fact: Any) -> None:
            add, observe = self.instruments.add, self.instruments.observe
            add("leaseway_requests_total", fact.model, outcome, fact.code)
            if not fact.service_us:
                return
            observe("leaseway_request_wait_seconds", fact.wait_us / _US, fact.model)
            served_by = "helper" if fact.helper else "owner"
            observe("leaseway_request_service_seconds", fact.service_us / _US, fact.model, served_by)
            for direction, tokens in (("in", fact.tokens_in), ("out", fact.tokens_out)):
                if tokens:
                    add("leaseway_tokens_total", fact.model, direction, by=tokens)

        return take

    def lend_ended(self, outcome: str) -> Callable[[Any], None]:
        """Return what takes the ends of lends."""

        def take(fact: Any) -> None:
            reason = getattr(fact, "reason", "")
            self.instruments.add("leaseway_lend_ends_total", fact.model, fact.helper, outcome, reason)

        return take

    def borrowed(self, outcome: str) -> Callable[[Any], None]:
        """Return what takes facts of the desk."""
        return lambda fact: self.instruments.add("leaseway_borrows_total", fact.model, fact.owner, outcome)

    def borrow_finished(self, fact: BorrowFinished) -> None:
        """Take the end of a borrowed request in the engine."""
        self.borrowed("finished" if fact.ok else "failed")(fact)

    def loaded(self, fact: Loaded | Restored) -> None:
        """Take a load, or a load back."""
        cause = fact.cause if isinstance(fact, Loaded) else "restore"
        self.instruments.add("leaseway_loads_total", fact.model, cause)
        self.instruments.observe("leaseway_load_seconds", fact.load_us / _US, fact.model)


def _takers(to: NodeMetrics) -> dict[type[Any], Callable[[Any], None]]:
    add = to.instruments.add
    return {
        Finished: to.ended("finished"),
        Failed: to.ended("failed"),
        Cancelled: to.ended("cancelled"),
        Rejected: to.ended("rejected"),
        Expired: to.ended("expired"),
        Lent: lambda fact: add("leaseway_lends_total", fact.model, fact.helper),
        LendAnswered: to.lend_ended("answered"),
        LendReturned: to.lend_ended("returned"),
        LendBusy: to.lend_ended("busy"),
        CutOff: to.lend_ended("cut_off"),
        RelayRefused: to.lend_ended("relay_refused"),
        LeaseRefused: lambda fact: add("leaseway_leases_refused_total", fact.reason),
        BorrowAccepted: to.borrowed("accepted"),
        BorrowFinished: to.borrow_finished,
        BorrowReturned: to.borrowed("returned"),
        BorrowBusy: to.borrowed("busy"),
        NativeWaited: lambda fact: to.instruments.observe(
            "leaseway_native_waited_seconds", fact.wait_us / _US, fact.model
        ),
        Loaded: to.loaded,
        Restored: to.loaded,
        LoadFailed: lambda fact: add("leaseway_load_failures_total", fact.model),
    }


def _slots(served: Served) -> Iterable[int]:
    return (lease.grant.slots for lease in served.serving.runtime.owner.leases.live.values())


_LOOKED_AT: Final[dict[str, Callable[[Served], float]]] = {
    "leaseway_requests_held": lambda served: served.serving.runtime.counts().held,
    "leaseway_requests_kept": lambda served: served.serving.kept,
    "leaseway_requests_in_engine": lambda served: served.serving.runtime.counts().in_engine,
    "leaseway_requests_lent": lambda served: served.serving.runtime.counts().lent,
    "leaseway_requests_borrowed": lambda served: served.serving.runtime.counts().borrowed,
    "leaseway_leases_live": lambda served: sum(1 for slots in _slots(served) if slots > 0),
    "leaseway_lease_slots": lambda served: sum(_slots(served)),
    "leaseway_engine_up": lambda served: served.serving.ready,
}
