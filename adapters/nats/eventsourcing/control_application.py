"""The control aggregates as an application of the eventsourcing library over LW_CONTROL.

The deciders of domain.control know nothing of the library; here they get what it asks of an aggregate: an id, a version,
events to collect, and a projector. The library's own base classes would read the clock.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from eventsourcing.application import Application
from eventsourcing.domain import DomainEventProtocol
from eventsourcing.persistence import InfrastructureFactory, IntegrityError, Mapper
from eventsourcing.utils import Environment

from adapters.keys import Credentials
from adapters.nats.eventsourcing.factory import JetStreamFactory
from adapters.nats.eventsourcing.mapper import ControlMapper, Decided
from domain.errors import WrongLastSequenceError
from domain.events import ControlEvent
from domain.ports import Clock
from domain.subjects import CONTROL, root

ATTEMPTS: Final = 5
"""Decisions anew after another operator was first; who loses five times in a row has a bug, not bad luck."""
_PAGE: Final = 1000

_State = TypeVar("_State")
_Event = TypeVar("_Event", bound=ControlEvent)
_Command_contra = TypeVar("_Command_contra", contravariant=True)


class Decider(Protocol[_State, _Event, _Command_contra]):
    """What makes an aggregate. Each module of domain.control that has these three is one."""

    @property
    def INITIAL(self) -> _State:  # noqa: N802  # a module's constant
        """The state before the first event."""
        ...

    def evolve(self, state: _State, event: _Event, /) -> _State:
        """Return the state after `event`."""
        ...

    def decide(self, command: _Command_contra, state: _State, /) -> list[_Event]:
        """Return what `command` makes happen."""
        ...


class Again(Generic[_State, _Event]):
    """A decider that says an event once more, whatever was decided."""

    def __init__(self, decider: Decider[_State, _Event, Any]) -> None:
        self._decider = decider
        self.INITIAL = decider.INITIAL

    def evolve(self, state: _State, event: _Event, /) -> _State:
        """Return the state after `event`."""
        return self._decider.evolve(state, event)

    def decide(self, command: _Event, state: _State, /) -> list[_Event]:
        """Return the event itself."""
        del state
        return [command]


class ControlAggregate(Generic[_State, _Event, _Command_contra]):
    """One aggregate as the library wants it: id, version and the events that are not stored yet."""

    def __init__(self, aggregate_id: str, decider: Decider[_State, _Event, _Command_contra]) -> None:
        self.id, self.version, self.state = aggregate_id, 0, decider.INITIAL
        self._decider = decider
        self._pending: list[Decided] = []

    def take(self, event: _Event) -> None:
        """Fold the next event."""
        self.state = self._decider.evolve(self.state, event)
        self.version += 1

    def act(self, command: _Command_contra) -> Sequence[_Event]:
        """Decide `command` and keep the events until they are stored; return them."""
        events = self._decider.decide(command, self.state)
        for event in events:
            self.take(event)
            self._pending.append(Decided(originator_id=self.id, originator_version=self.version, event=event))
        return events

    def collect_events(self) -> Sequence[DomainEventProtocol[str]]:
        """Return the events to store, once."""
        pending, self._pending = self._pending, []
        return pending


class ControlApplication(Application[str]):
    """The library's application over LW_CONTROL."""

    name = "Control"
    env: ClassVar[dict[str, str]] = {}

    def __init__(self, url: str, credentials: Credentials | None, cluster: str, clock: Clock) -> None:
        self._credentials, self._cluster, self._clock = credentials, cluster, clock
        super().__init__(
            {
                "NATS_URL": url,
                "JS_STREAM": CONTROL,
                "JS_SUBJECT": f"{root(cluster)}.control",
                "ORIGINATOR_ID_TYPE": "text",
                "CREATE_TABLE": "no",
            }
        )

    def construct_factory(self, env: Environment) -> InfrastructureFactory[Any]:
        """Return our persistence module, with the operator's credentials."""
        return JetStreamFactory(env, self._credentials)

    def construct_mapper(self) -> Mapper[str]:
        """Return the mapper to envelopes."""
        producer = self._credentials.name if self._credentials is not None else "operator"
        return ControlMapper(cluster=self._cluster, producer=producer, clock=self._clock)

    def act(
        self, aggregate_id: str, decider: Decider[_State, _Event, _Command_contra], command: _Command_contra
    ) -> Sequence[_Event]:
        """Return the events that `command` made happen, now stored; none if it asks for what already is.

        Raises:
            WrongLastSequenceError: others were first, `ATTEMPTS` times.
        """
        return self.act_all(decider, {aggregate_id: command})

    def act_all(
        self, decider: Decider[_State, _Event, _Command_contra], commands: Mapping[str, _Command_contra]
    ) -> Sequence[_Event]:
        """Return the events that `commands`, by aggregate id, made happen: stored all at once, or none of them.

        Raises:
            WrongLastSequenceError: others were first, `ATTEMPTS` times.
        """
        for _ in range(ATTEMPTS):
            decided = [self._decided(decider, aggregate_id, command) for aggregate_id, command in commands.items()]
            changed = [(aggregate, events) for aggregate, events in decided if events]
            if not changed:
                return ()
            try:
                self.save(*(aggregate for aggregate, _ in changed))
            except IntegrityError:
                continue
            return [event for _, events in changed for event in events]
        whose = ", ".join(list(commands)[:3])
        raise WrongLastSequenceError(f"control {whose}: others changed it {ATTEMPTS} times in a row; try again")

    def _decided(
        self, decider: Decider[_State, _Event, _Command_contra], aggregate_id: str, command: _Command_contra
    ) -> tuple[ControlAggregate[_State, _Event, _Command_contra], Sequence[_Event]]:
        project = functools.partial(_project, aggregate_id, decider)
        aggregate: ControlAggregate[_State, _Event, _Command_contra] = self.repository.get(
            aggregate_id, projector_func=project
        )
        return aggregate, aggregate.act(command)

    def history(self) -> Iterator[Decided]:
        """Yield every control event in the order of LW_CONTROL."""
        start = None
        while True:
            page = self.recorder.select_notifications(start, _PAGE, inclusive_of_start=False)
            for notification in page:
                decided = self.mapper.to_domain_event(notification)
                assert isinstance(decided, Decided), "our mapper makes nothing else"
                yield decided
            if len(page) < _PAGE:
                return
            start = page[-1].id


def _project(
    aggregate_id: str,
    decider: Decider[_State, _Event, _Command_contra],
    aggregate: ControlAggregate[_State, _Event, _Command_contra] | None,
    events: Iterable[Any],
) -> ControlAggregate[_State, _Event, _Command_contra]:
    """Return the aggregate after `events`. One without events is one at version 0, not a missing one."""
    aggregate = aggregate or ControlAggregate(aggregate_id, decider)
    for decided in events:
        aggregate.take(decided.event)
        aggregate.version = decided.originator_version  # not one more: an event of it may be lost
    return aggregate
