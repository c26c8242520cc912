"""What surrounds two models in one runtime in their property test: it believes actions, and checks every output as it comes.

Own work waits behind no more than the depth of borrowed requests and one load: none of either begins while own work waits.
"""

from typing import Any

from domain.actions import CancelLend, Dispatch, Lend, LoadModel, Output, Refuse
from domain.events import (
    Accepting,
    BorrowAccepted,
    BorrowFinished,
    BorrowReturned,
    BorrowStarted,
    Cancelled,
    CutOff,
    Expired,
    Failed,
    Finished,
    LendAnswered,
    LendReturned,
    LoadStarted,
    NativeWaited,
    NotAccepting,
    Rejected,
    RestoreCancelled,
    Restored,
    RestoreScheduled,
    Unloaded,
)
from domain.ids import ModelId

DEPTH = 2


class RoomWorld:
    """What is where, for all models of the room together."""

    def __init__(self, models: tuple[ModelId, ...], resident: ModelId) -> None:
        self.now_us = 0
        self.resident: ModelId | None = resident
        self.loading: ModelId | None = None
        self.open: dict[str, ModelId] = {}
        self.ended: set[str] = set()
        self.engine: dict[str, tuple[ModelId, bool]] = {}
        self.lends: dict[str, Lend] = {}
        self.desk: dict[str, tuple[ModelId, str]] = {}
        self.bodies: dict[str, ModelId] = {}
        self.no_load: set[str] = set()
        """Borrowed over a link that forbids a load."""
        self.closed: dict[ModelId, str] = dict.fromkeys(models, "")
        self.scheduled: ModelId | None = None

    @property
    def held(self) -> set[str]:
        return {request for request in self.open if request not in self.engine and request not in self.lends}

    def see(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case Dispatch() | Lend() | CancelLend() | Refuse():
                    self._request_action(output)
                case LoadModel():
                    self._load(output)
                case BorrowAccepted() | BorrowStarted() | BorrowReturned() | BorrowFinished():
                    self._desk_fact(output)
                case Finished() | Failed() | Cancelled() | Rejected() | Expired():
                    assert output.request not in self.ended, "two terminal facts"
                    self.ended.add(output.request)
                    del self.open[output.request]
                case LendAnswered() | LendReturned() | CutOff():
                    self.lends.pop(output.request, None)
                case NativeWaited():
                    assert output.borrowed_in_engine <= DEPTH
                case _:
                    self._room_fact(output)

    def _request_action(self, action: Any) -> None:
        request = action.request
        match action:
            case Dispatch():
                model = self.desk[request][0] if action.borrowed else self.open[request]
                assert request not in self.engine
                assert request not in self.lends
                assert (self.resident, self.loading) == (model, None), (
                    "given to the engine of a model that is not loaded"
                )
                self.engine[request] = (model, action.borrowed)
                assert len({of for of, _ in self.engine.values()}) == 1, "two models inside at once"
                assert len(self.engine) <= DEPTH
            case Lend():
                assert request in self.held
                self.lends[request] = action
            case CancelLend():
                del self.lends[request]
            case _:
                assert request in self.ended, "a client is told of an error that no fact tells"

    def _load(self, action: LoadModel) -> None:
        assert self.loading is None, "two loads at once"
        assert not self.engine, "a load while a request is inside"
        assert action.model != self.resident or self.resident is None
        if action.cause == "own":
            assert any(self.open[request] == action.model for request in self.held), "loaded for nobody"
        else:
            assert not self.held, "a load for others while own work waits"
        if action.cause == "borrowed":
            waiting = [request for request, (of, at) in self.desk.items() if of == action.model and at == "waiting"]
            assert any(request not in self.no_load for request in waiting), "loaded though no link allows it"
        self.resident, self.loading = None, action.model
        stuck = {request for request, (of, at) in self.desk.items() if at == "waiting" and of != action.model}
        assert not stuck & self.no_load, "waits for a load that its link forbids"

    def _desk_fact(self, fact: Any) -> None:
        match fact:
            case BorrowAccepted():
                assert not self.closed[fact.model], "taken while the node says that it takes nothing"
                self.desk[fact.request] = (fact.model, "waiting")
                self.bodies[fact.request] = fact.model
                assert len(self.desk) <= DEPTH, "more than the depth at the desks"
            case BorrowStarted():
                assert self.desk[fact.request] == (fact.model, "waiting")
                assert not self.held, "borrowed work went before own work"
                self.desk[fact.request] = (fact.model, "running")
                self.bodies.pop(fact.request, None)
            case BorrowReturned():
                assert self.desk.pop(fact.request, (fact.model, "waiting"))[1] == "waiting", "returned after its start"
                self.bodies.pop(fact.request, None)
            case _:
                assert self.desk.pop(fact.request)[1] == "running"

    def _room_fact(self, fact: Any) -> None:
        match fact:
            case NotAccepting():
                self.closed[fact.model] = fact.reason
            case Accepting():
                self.closed[fact.model] = ""
            case RestoreScheduled():
                assert self.scheduled is None, "scheduled twice"
                self.scheduled = fact.model
            case RestoreCancelled():
                self.scheduled = None
            case Restored():
                assert fact.model == self.resident
                self.scheduled = None
            case Unloaded():
                assert not self.engine, "unloaded under a request"
            case LoadStarted():
                assert self.loading is None
            case _:
                pass
