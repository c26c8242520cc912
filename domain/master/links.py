"""Links with the keys of what is known about them, and links by their helper.

Both follow from `Control` alone. They are kept beside the state, not in it, until a link comes or goes: a plan asks for them for
every helper, and making the same few texts anew would cost more than all that it looks up under them.
"""

from collections.abc import Sequence

import msgspec

from domain.catalogue.eligibility import VISION, ineligible
from domain.events import LinkAdded, ModelInfo
from domain.master import slots
from domain.master.state import Control, State, owner_key


class Match(msgspec.Struct, frozen=True, gc=False):
    """How a helper's model suits an owner's, by what their nodes registered."""

    owner: ModelInfo | None
    helper: ModelInfo
    code: str
    """Why the one may not stand in for the other (domain.catalogue.eligibility); empty if it may, or no owner is known."""
    sees: bool
    """It may have requests that hold an image."""
    window: int
    """How many tokens a request may have to go there; 0 if that does not matter."""


class Way(msgspec.Struct, gc=False):
    """A link with its keys."""

    added: LinkAdded
    over: str
    """Of what is out over it (domain.master.slots.key_of)."""
    owner: str
    """Of the owner's model."""
    helper: str
    """Of the helper's model."""
    last_match: Match | None = None

    def match(self, owner: ModelInfo | None, helper: ModelInfo) -> Match:
        """Return how the two models suit each other, as last found while neither was registered anew."""
        known = self.last_match
        if known is None or known.owner is not owner or known.helper is not helper:
            known = self.last_match = Match(
                owner,
                helper,
                ineligible(owner, helper) if owner is not None else "",
                VISION in helper.capabilities,
                helper.context if helper.lane == "text" else 0,
            )
        return known


def way_of(control: Control, added: LinkAdded) -> Way:
    """Return the way of a link that is there, or gone and not forgotten."""
    ways: dict[str, Way] | None = control.__dict__.get("ways")
    if ways is None:
        ways = control.__dict__["ways"] = {}
    way = ways.get(added.link)
    if way is None:
        owner, helper = owner_key(added.owner, added.owner_model), owner_key(added.helper, added.helper_model)
        way = ways[added.link] = Way(added, slots.key_of(added), owner, helper)
    return way


def ways_from(control: Control, owner_key: str) -> Sequence[Way]:
    """Return every way by which an owner's model may lend, in order of links."""
    links = control.by_owner.get(owner_key)
    if links is None:
        return ()
    index: dict[str, list[Way]] | None = control.__dict__.get("ways from")
    if index is None:
        index = control.__dict__["ways from"] = {}
    ways = index.get(owner_key)
    if ways is None:
        ways = index[owner_key] = [way_of(control, control.links[link]) for link in links]
    return ways


def ways_to(state: State, helper_key: str) -> Sequence[Way]:
    """Return every way by which something may be at the helper's model: the removed links whose rest is still out as well."""
    control = state.control
    if helper_key not in control.by_helper and not control.gone:
        return ()
    index: dict[str, list[Way]] | None = control.__dict__.get("ways to")
    if index is None:
        index = control.__dict__["ways to"] = {}
    ways = index.get(helper_key)
    if ways is None:
        ways = _ways_to(control, helper_key)
        if ways:  # keys of models without a link are not remembered: a node may name as many as it likes
            index[helper_key] = ways
    return ways


def _ways_to(control: Control, helper_key: str) -> list[Way]:
    ways = [way_of(control, control.links[link]) for link in control.by_helper.get(helper_key, ())]
    ways += [
        way_of(control, control.gone[link])
        for link in sorted(control.gone)
        if owner_key(control.gone[link].helper, control.gone[link].helper_model) == helper_key
    ]
    return ways


def forget_ways(control: Control) -> None:
    """Find the ways anew: a link came, went or was forgotten."""
    for name in ("ways", "ways from", "ways to"):
        control.__dict__.pop(name, None)
