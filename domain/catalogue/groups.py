"""Symmetric routing groups, every member of which could serve for every other, as links.

Each pair of members on different nodes is two links, one a direction. The helper may load its model, as a group never forbade it,
and the restore flag stays with the link whose helper had it. So lending is as it was until an operator removes the direction
that is not wanted.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations, pairwise

import msgspec

from domain.catalogue.eligibility import Catalogue, weights
from domain.control.links import AddLink, decide
from domain.errors import BadIdError, BadLinkError
from domain.events.control import LinkAdded
from domain.ids import LinkId, ModelId, NodeId, model_id, node_id

MEMBERS_MAX = 64
"""Of one group; n members are n (n - 1) links."""


class Member(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model in a group."""

    node: NodeId
    model: ModelId
    restore: bool = False
    """It loads back what borrowed work displaced."""


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models that could all serve for each other."""

    name: str = ""
    members: tuple[Member, ...]


class Groups(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file of groups holds."""

    groups: tuple[Group, ...]


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of one pair, and what would become of it."""

    command: AddLink
    outcome: str
    """made, changed (it had other flags), stands (as it is already), or refused."""
    why: str = ""
    """Why it is refused."""


class SameNode(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A pair that is no link since both run on one node."""

    node: NodeId
    model: ModelId
    other: ModelId


class Import(msgspec.Struct, frozen=True, kw_only=True):
    """What importing groups comes to."""

    links: tuple[Planned, ...]
    """Each direction once, in order of its ends."""
    same_node: tuple[SameNode, ...]

    @property
    def refused(self) -> tuple[Planned, ...]:
        """The directions that may not be linked."""
        return tuple(planned for planned in self.links if planned.outcome == "refused")

    @property
    def commands(self) -> tuple[AddLink, ...]:
        """What to do for the others, as far as it is not so already."""
        return tuple(planned.command for planned in self.links if planned.outcome in {"made", "changed"})


def plan_import(
    groups: Iterable[Group],
    standing: Mapping[LinkId, LinkAdded],
    catalogue: Catalogue | None,
    *,
    different_weights: bool = False,
) -> Import:
    """Return the links that `groups` are, judged against those that stand; nothing is changed.

    `catalogue`: what is served now; None if nobody can tell. `different_weights`: the operator knows that some of them have.
    A pair that stands in several groups is linked once, and restores if one of them says so.

    Raises:
        BadLinkError: a group is none: an id has not the form of one, a member stands in it twice, or they are too many.
    """
    restores: dict[tuple[Member, Member], bool] = {}
    same: set[SameNode] = set()
    for group in groups:
        for one, other in combinations(_members(group), 2):
            if one.node == other.node:
                same.add(SameNode(node=one.node, model=one.model, other=other.model))
                continue
            for owner, helper in ((one, other), (other, one)):
                ends = (_bare(owner), _bare(helper))
                restores[ends] = restores.get(ends, False) or helper.restore
    planned = (
        _planned(owner, helper, standing, catalogue, restore=restore, different_weights=different_weights)
        for (owner, helper), restore in restores.items()
    )
    return Import(links=tuple(sorted(planned, key=_ends)), same_node=tuple(sorted(same)))


def _members(group: Group) -> list[Member]:
    """Return a group's members in order of id, their ids checked."""
    name = f"group {group.name[:80]!r}"
    if len(group.members) > MEMBERS_MAX:
        raise BadLinkError(f"{name}: must have at most {MEMBERS_MAX} members, got {len(group.members)}")
    members = sorted(_checked(name, group.members), key=lambda member: (member.node, member.model))
    for one, other in pairwise(members):
        if _bare(one) == _bare(other):
            raise BadLinkError(f"{name}: member {one.node}/{one.model} must be stated once only")
    return members


def _checked(name: str, members: Iterable[Member]) -> Iterator[Member]:
    for member in members:
        try:
            yield Member(node=node_id(member.node), model=model_id(member.model), restore=member.restore)
        except BadIdError as error:
            raise BadLinkError(f"{name}: {error}") from None


def _bare(member: Member) -> Member:
    return Member(node=member.node, model=member.model)


def _planned(
    owner: Member,
    helper: Member,
    standing: Mapping[LinkId, LinkAdded],
    catalogue: Catalogue | None,
    *,
    restore: bool,
    different_weights: bool,
) -> Planned:
    command = AddLink(
        owner=owner.node,
        owner_model=owner.model,
        helper=helper.node,
        helper_model=helper.model,
        load_if_unloaded=True,
        restore_after_borrow=restore,
        different_weights=different_weights and _may_differ(owner, helper, catalogue),
        catalogue=catalogue,
    )
    before = standing.get(command.link)
    try:
        changes = decide(command, before)
    except BadLinkError as error:
        return Planned(command=command, outcome="refused", why=str(error))
    outcome = "stands" if not changes else "made" if before is None else "changed"
    return Planned(command=command, outcome=outcome)


def _may_differ(owner: Member, helper: Member, catalogue: Catalogue | None) -> bool:
    """Tell whether there is something to acknowledge: links to the same weights carry no word about different ones."""
    if catalogue is None:
        return True
    one, other = (catalogue.get(member.node, {}).get(member.model) for member in (owner, helper))
    return one is not None and other is not None and weights(one, other) == "different"


def _ends(planned: Planned) -> tuple[str, str, str, str]:
    command = planned.command
    return command.owner, command.owner_model, command.helper, command.helper_model
