"""What is to be different: settings, links, or whether anything is lent at all. Everything else stays as it was recorded."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from domain.control.settings import PREFIX, SETTINGS, show_value
from domain.errors import BadLinkError
from domain.events import (
    ControlEvent,
    LinkAdded,
    LinkRemoved,
    SettingChanged,
    SettingCleared,
)
from domain.ids import LinkId, ModelId, NodeId
from domain.master.state import Control

End = tuple[NodeId, ModelId]
NONE: Final = "none"
"""The policy that lends nothing: as if there were no link."""


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """Said by an operator. They hold from the beginning of the range to its end."""

    settings: dict[str, int] = {}
    """By bare name, in their own units."""
    added: tuple[LinkAdded, ...] = ()
    removed: tuple[LinkAdded, ...] = ()
    """Named by their ends; the flags do not matter."""
    lends: bool = True
    """False: no link at all."""
    policy: str = ""
    """Of the simulator's model, for the run on; empty: the product's own rules."""

    @property
    def nothing(self) -> bool:
        """Whether all stays as it was."""
        return not (self.settings or self.added or self.removed or self.policy) and self.lends

    def at_the_beginning(self, control: Control) -> Iterator[ControlEvent]:
        """Yield what operators would have had to decide before the range, given what they had decided by then."""
        gone = {link.link for link in self.removed}
        for link, added in sorted(control.links.items()):
            if link in gone or not self.lends:
                yield LinkRemoved(link=link, owner=added.owner, owner_model=added.owner_model)
        if self.lends:
            yield from self.added
        for name, value in sorted(self.settings.items()):
            yield SettingChanged(name=PREFIX + name, value=value)

    def heard(self, event: ControlEvent | None) -> ControlEvent | None:
        """Return what remains of a control event of the range; None where the changes overrule it."""
        match event:
            case LinkAdded():
                return None if not self.lends or self._says(event.link) else event
            case LinkRemoved():
                return None if not self.lends or self._says(event.link) else event
            case SettingChanged() | SettingCleared():
                return None if event.name.removeprefix(PREFIX) in self.settings else event
            case _:
                return event

    def _says(self, link: LinkId) -> bool:
        return any(one.link == link for one in (*self.added, *self.removed))

    def words(self) -> list[str]:
        """Return the changes one by one, as people read them."""
        said = [] if self.lends else ["nothing is lent"]
        said += [f"policy {self.policy}"] if self.policy else []
        said += [f"without {name_of(link)}" for link in self.removed]
        said += [f"with {name_of(link)}" + _flags(link) for link in self.added]
        return said + [f"{name} = {show_value(SETTINGS[name], value)}" for name, value in sorted(self.settings.items())]


def _flags(link: LinkAdded) -> str:
    flags = [name for name in FLAGS if getattr(link, name)]
    return f" ({', '.join(flags)})" if flags else ""


FLAGS: Final = ("load_if_unloaded", "restore_after_borrow", "different_weights")


def name_of(link: LinkAdded) -> str:
    """Return a link as people write it."""
    return f"{link.owner}/{link.owner_model} -> {link.helper}/{link.helper_model}"


def check(changes: Changes, links: Mapping[LinkId, LinkAdded], served: Mapping[NodeId, set[ModelId]]) -> None:
    """Check that the changes speak of what there is.

    Args:
        changes: what an operator said.
        links: every link that there was in the range.
        served: the models that each node ever said it serves.

    Raises:
        BadLinkError: a link to be left out never was there; an end of a new one is served by nobody; or one is both.
    """
    for link in changes.removed:
        if link.link not in links:
            known = ", ".join(sorted(name_of(one) for one in links.values())) or "none"
            raise BadLinkError(f"--without-link {name_of(link)}: there is no such link in that time; there are {known}")
        if any(one.link == link.link for one in changes.added):
            raise BadLinkError(f"link {name_of(link)}: must be said with --link or --without-link, not with both")
    for link in changes.added:
        for side, node, model in (("owner", link.owner, link.owner_model), ("helper", link.helper, link.helper_model)):
            if model not in served.get(node, ()):
                known = ", ".join(f"{at}/{each}" for at in sorted(served) for each in sorted(served[at])) or "none"
                raise BadLinkError(
                    f"--link {name_of(link)}: {side} {node}/{model} is served by nobody; there are {known}"
                )
        if link.owner == link.helper:
            raise BadLinkError(f"--link {name_of(link)}: a node cannot lend to itself")
