"""The operators' desk: control aggregates as an application of the eventsourcing library over LW_CONTROL.

    with ControlDesk(url, credentials, "local") as desk:
        desk.add_link(NodeId("a"), ModelId("m"), NodeId("b"), ModelId("m"), load_if_unloaded=True)

Everything here blocks; asyncio code runs it in a thread.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from eventsourcing.persistence import MapperDeserialisationError, PersistenceError

from adapters.clock import SystemClock
from adapters.keys import Credentials
from adapters.nats.eventsourcing.control_application import Again, ControlApplication, Decider
from adapters.nats.eventsourcing.link import NoAnswerError
from adapters.nats.eventsourcing.recorder import TOPIC, VERSION
from adapters.nats.eventsourcing.stream import BATCH_MAX
from domain.catalogue.eligibility import Catalogue
from domain.control import links, nodes, overrides
from domain.control.settings import parse_value, setting_of
from domain.control.view import ControlView
from domain.errors import BadLinkError, BusError, HistoryError, PublishUnknownError
from domain.events import (
    ControlEvent,
    LinkAdded,
    LinkRemoved,
    NodeEnrolled,
    NodeRetired,
    SettingChanged,
    SettingCleared,
    SettingStated,
    SettingUnstated,
)
from domain.ids import ModelId, NodeId, model_id, node_id
from domain.ports import Clock


class ControlDesk:
    """What an operator can ask of a cluster: links, nodes, settings. One connection; close it."""

    def __init__(self, url: str, credentials: Credentials | None, cluster: str, *, clock: Clock | None = None) -> None:
        """Connect to the bus.

        Raises:
            BusError: nobody answers there, or not to these credentials.
        """
        with _bus_errors():
            self._application = ControlApplication(url, credentials, cluster, clock or SystemClock())

    def add_link(
        self,
        owner: NodeId,
        owner_model: ModelId,
        helper: NodeId,
        helper_model: ModelId,
        *,
        load_if_unloaded: bool = False,
        restore_after_borrow: bool = False,
        different_weights: bool = False,
        catalogue: Catalogue | None = None,
    ) -> LinkAdded | None:
        """Return the link as it is added or changed; None if it stands so already.

        `catalogue` is what the cluster serves now, as far as anyone can tell (None: nothing about the models is checked).

        Raises:
            BadLinkError: such a link may not be.
            BusError: it could not be stored; PublishUnknownError if it may be.
        """
        command = links.AddLink(
            owner=owner,
            owner_model=model_id(owner_model),
            helper=helper,
            helper_model=model_id(helper_model),
            load_if_unloaded=load_if_unloaded,
            restore_after_borrow=restore_after_borrow,
            different_weights=different_weights,
            catalogue=catalogue,
        )
        with _bus_errors():
            events = self._application.act(f"links.{command.link}", links, command)
        return next((event for event in events if isinstance(event, LinkAdded)), None)

    def add_links(self, commands: Iterable[links.AddLink]) -> tuple[LinkAdded, ...]:
        """Return the links that are added or changed, all at once; those that stand so already are left out.

        Raises:
            BadLinkError: one of them may not be, or they are too many; then nothing has changed.
            BusError: as for `add_link`.
        """
        by_aggregate = {f"links.{command.link}": command for command in commands}
        if len(by_aggregate) > BATCH_MAX:
            raise BadLinkError(f"links: at most {BATCH_MAX} at once, got {len(by_aggregate)}")
        with _bus_errors():
            events = self._application.act_all(links, by_aggregate)
        return tuple(event for event in events if isinstance(event, LinkAdded))

    def remove_link(self, owner: NodeId, owner_model: ModelId, helper: NodeId, helper_model: ModelId) -> LinkRemoved:
        """Return the removal of a link.

        Raises:
            BadLinkError: there is no such link.
            BusError: as for `add_link`.
        """
        ends = (owner, model_id(owner_model), helper, model_id(helper_model))
        command = links.RemoveLink(owner=ends[0], owner_model=ends[1], helper=ends[2], helper_model=ends[3])
        with _bus_errors():
            events = self._application.act(f"links.{command.link}", links, command)
        return next(event for event in events if isinstance(event, LinkRemoved))

    def enroll_node(self, node: NodeId, public_key: str, url: str) -> NodeEnrolled | None:
        """Return the node's enrolment; None if it stands so already.

        Raises:
            BadIdError, BadNodeError: id, key or url has not the form of one.
            BusError: as for `add_link`.
        """
        command = nodes.EnrolNode(node=node_id(node), public_key=public_key, url=url)
        with _bus_errors():
            events = self._application.act(f"nodes.{node}", nodes, command)
        return next((event for event in events if isinstance(event, NodeEnrolled)), None)

    def retire_node(self, node: NodeId) -> NodeRetired | None:
        """Return the node's retirement; None if it is retired already.

        Raises:
            BadIdError, BadNodeError: there is no such node.
            BusError: as for `add_link`.
        """
        with _bus_errors():
            events = self._application.act(f"nodes.{node_id(node)}", nodes, nodes.RetireNode(node=node))
        return next((event for event in events if isinstance(event, NodeRetired)), None)

    def set_settings(self, values: Mapping[str, int | str]) -> tuple[SettingChanged, ...]:
        """Return what changed. Numbers are in the settings' own units, text is what people write (`90s`, `on`).

        Raises:
            BadSettingError: one of them is unknown or out of range; then nothing has changed.
            BusError: as for `add_link`.
        """
        read = {
            name: parse_value(setting_of(name), value) if isinstance(value, str) else value
            for name, value in values.items()
        }
        events = self._settings(overrides.ChangeSettings(values=read))
        return tuple(event for event in events if isinstance(event, SettingChanged))

    def set_setting(self, name: str, value: int | str) -> SettingChanged | None:
        """Return the change of one setting (see `set_settings`); None if its override has this value already."""
        return next(iter(self.set_settings({name: value})), None)

    def clear_settings(self, names: Iterable[str]) -> tuple[SettingCleared, ...]:
        """Return the overrides that are gone now; those that there were none of are left out.

        Raises:
            BadSettingError: there is no setting of one of these names; then nothing has changed.
            BusError: as for `add_link`.
        """
        events = self._settings(overrides.ClearSettings(names=tuple(names)))
        return tuple(event for event in events if isinstance(event, SettingCleared))

    def clear_setting(self, name: str) -> SettingCleared | None:
        """Return that the override of a setting is gone (see `clear_settings`); None if there was none."""
        return next(iter(self.clear_settings((name,))), None)

    def state_file(self, values: Mapping[str, int]) -> tuple[SettingStated | SettingUnstated, ...]:
        """Return what changed by saying what the configuration file states, all of it, in the settings' own units.

        Raises:
            BadSettingError: one of them is unknown or out of range; then nothing has changed.
            BusError: as for `add_link`.
        """
        events = self._settings(overrides.StateFile(values=values))
        return tuple(event for event in events if isinstance(event, SettingStated | SettingUnstated))

    def _settings(self, command: overrides.SettingCommand) -> Sequence[overrides.SettingEvent]:
        with _bus_errors():
            return self._application.act(overrides.AGGREGATE, overrides, command)

    def restate(self) -> int:
        """State once more all that holds, as far as LW_CONTROL can be read; return with how many events.

        A new generation of the ledger reads no control event before a hole: what was decided there holds again by this.

        Raises:
            BusError: LW_CONTROL cannot be read, or not all could be stored; it may be asked again.
            HistoryError: it holds something that is no control event.
        """
        stored = 0
        with _bus_errors():
            for event in self.view().as_events():
                aggregate, decider = _of(event)
                stored += len(self._application.act(aggregate, Again(decider), event))
        return stored

    def view(self) -> ControlView:
        """Return everything that is decided now.

        Raises:
            BusError: LW_CONTROL cannot be read.
            HistoryError: it holds something that is no control event.
        """
        view = ControlView()
        with _bus_errors():
            for decided in self._application.history():
                view.apply(decided.event)
        return view

    def links(self) -> tuple[LinkAdded, ...]:
        """Return every link, in order of id."""
        return self.view().links()

    def settings(self) -> dict[str, int]:
        """Return what holds for every setting, by bare name: the override, else the file's value, else the default."""
        return self.view().settings()

    def close(self) -> None:
        """End the connection; may be called twice."""
        self._application.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _of(event: ControlEvent) -> tuple[str, Decider[Any, Any, Any]]:
    """Return the aggregate of an event, and what decides it."""
    match event:
        case NodeEnrolled() | NodeRetired():
            return f"nodes.{event.node}", nodes
        case LinkAdded() | LinkRemoved():
            return f"links.{event.link}", links
        case _:
            return overrides.AGGREGATE, overrides


@contextmanager
def _bus_errors() -> Iterator[None]:
    """Raise the library's errors as ours."""
    try:
        yield
    except MapperDeserialisationError as error:
        raise HistoryError(f"LW_CONTROL: {error}") from error
    except KeyError as error:
        if error.args[0] not in {VERSION, TOPIC}:
            raise
        raise HistoryError(f"LW_CONTROL: a message must have the header {error}, it is no control event") from error
    except NoAnswerError as error:
        raise PublishUnknownError(f"LW_CONTROL: {error}") from error
    except PersistenceError as error:
        raise BusError(f"LW_CONTROL: {error}") from error
