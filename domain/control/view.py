"""What the operators decided, folded from LW_CONTROL: links, nodes, settings. Nodes, gateways and the master all hold one."""

from collections.abc import Mapping
from typing import Literal, assert_never

from domain.control.settings import PREFIX, SETTINGS, setting_of
from domain.events.control import (
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
from domain.ids import LinkId, ModelId, NodeId

_End = tuple[NodeId, ModelId]
Source = Literal["override", "file", "default"]
"""Where the value of a setting comes from."""


class ControlView:
    """The fold of control events. Everything it gives out is in order of id.

    Applying an event twice changes nothing more; of several events about one thing, the last one applied holds.
    """

    def __init__(self) -> None:
        """Begin without links and nodes, every setting at its default."""
        self._links: dict[LinkId, LinkAdded] = {}
        self._lends: dict[_End, dict[LinkId, LinkAdded]] = {}
        self._borrows: dict[_End, dict[LinkId, LinkAdded]] = {}
        self._nodes: dict[NodeId, NodeEnrolled] = {}
        self._retired: set[NodeId] = set()
        self._overrides: dict[str, int] = {}
        self._stated: dict[str, int] = {}

    def apply(self, event: ControlEvent) -> None:
        """Fold one event. It never refuses: what is stored has been decided."""
        match event:
            case LinkAdded():
                self._links[event.link] = event
                self._lends.setdefault((event.owner, event.owner_model), {})[event.link] = event
                self._borrows.setdefault((event.helper, event.helper_model), {})[event.link] = event
            case LinkRemoved():
                self._drop_link(event.link)
            case NodeEnrolled():
                self._nodes[event.node] = event
                self._retired.discard(event.node)
            case NodeRetired():
                self._nodes.pop(event.node, None)
                self._retired.add(event.node)
            case SettingChanged():
                self._overrides[event.name.removeprefix(PREFIX)] = event.value
            case SettingCleared():
                self._overrides.pop(event.name.removeprefix(PREFIX), None)
            case SettingStated():
                self._stated[event.name.removeprefix(PREFIX)] = event.value
            case SettingUnstated():
                self._stated.pop(event.name.removeprefix(PREFIX), None)
            case _:
                assert_never(event)

    def links(self) -> tuple[LinkAdded, ...]:
        """Return every link."""
        return _in_order(self._links)

    def link(self, link: LinkId) -> LinkAdded | None:
        """Return one link; None if there is none of this id (any more)."""
        return self._links.get(link)

    def links_lent_by(self, node: NodeId, model: ModelId) -> tuple[LinkAdded, ...]:
        """Return the links over which `model` of `node` may lend: where it is the owner."""
        return _in_order(self._lends.get((node, model), {}))

    def links_borrowed_by(self, node: NodeId, model: ModelId) -> tuple[LinkAdded, ...]:
        """Return the links over which `model` of `node` may borrow: where it is the helper."""
        return _in_order(self._borrows.get((node, model), {}))

    def is_enrolled(self, node: NodeId, model: ModelId) -> bool:
        """Tell whether a model stands in any link: then its requests are queued by the router."""
        return (node, model) in self._lends or (node, model) in self._borrows

    def nodes(self) -> tuple[NodeEnrolled, ...]:
        """Return every node that may speak, with its public key and url."""
        return tuple(self._nodes[node] for node in sorted(self._nodes))

    def node(self, node: NodeId) -> NodeEnrolled | None:
        """Return a node that may speak; None if it never was enrolled or is retired."""
        return self._nodes.get(node)

    def is_retired(self, node: NodeId) -> bool:
        """Tell whether an operator said that `node` will not come back."""
        return node in self._retired

    def setting(self, name: str) -> int:
        """Return what holds for a setting, in its unit: the override, else what the file states, else the default.

        It may change with every event: ask where the value is used, do not keep it.

        Raises:
            BadSettingError: there is no such setting.
        """
        setting = setting_of(name)
        value = self._overrides.get(setting.name)
        if value is None:
            value = self._stated.get(setting.name)
        return setting.default if value is None else value

    def source(self, name: str) -> Source:
        """Return where the value of a setting comes from.

        Raises:
            BadSettingError: there is no such setting.
        """
        bare = setting_of(name).name
        return "override" if bare in self._overrides else "file" if bare in self._stated else "default"

    def settings(self) -> dict[str, int]:
        """Return what holds for every setting, by bare name in order of name."""
        return {name: self.setting(name) for name in SETTINGS}

    def overrides(self) -> dict[str, int]:
        """Return the stored overrides alone, in order of name."""
        return dict(sorted(self._overrides.items()))

    def stated(self) -> dict[str, int]:
        """Return what the configuration file states, in order of name."""
        return dict(sorted(self._stated.items()))

    def as_events(self) -> tuple[ControlEvent, ...]:
        """Return the fewest events that make this view again: what a snapshot keeps of it."""
        return (
            *self.nodes(),
            *(NodeRetired(node=node) for node in sorted(self._retired)),
            *(SettingStated(name=PREFIX + name, value=value) for name, value in self.stated().items()),
            *(SettingChanged(name=PREFIX + name, value=value) for name, value in self.overrides().items()),
            *self.links(),
        )

    def _drop_link(self, link: LinkId) -> None:
        gone = self._links.pop(link, None)
        if gone is None:
            return
        ends = ((self._lends, (gone.owner, gone.owner_model)), (self._borrows, (gone.helper, gone.helper_model)))
        for links_by_end, end in ends:
            del links_by_end[end][link]
            if not links_by_end[end]:
                del links_by_end[end]


def _in_order(links: Mapping[LinkId, LinkAdded]) -> tuple[LinkAdded, ...]:
    return tuple(links[link] for link in sorted(links))
