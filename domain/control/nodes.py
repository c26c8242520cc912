"""A node: who may speak, with which key, and where it is reached. One aggregate a node, `nodes.<node>`.

Events used: NodeEnrolled (carries the whole, so a later one replaces it) and NodeRetired.
"""

import re
from typing import Final, assert_never

import msgspec

from domain.errors import BadNodeError
from domain.events.control import NodeEnrolled, NodeRetired
from domain.ids import NodeId, node_id

NodeEvent = NodeEnrolled | NodeRetired
_PUBLIC_KEY: Final = re.compile(r"U[A-Z2-7]{55}")
_URL: Final = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided about a node."""

    enrolled: NodeEnrolled | None = None
    """Its newest enrolment; None if it has none, or is retired."""
    retired: bool = False


INITIAL: Final = NodeState()


def evolve(_state: NodeState, event: NodeEvent) -> NodeState:
    """Return the node after `event`. It never refuses."""
    match event:
        case NodeEnrolled():
            return NodeState(enrolled=event)
        case NodeRetired():
            return NodeState(retired=True)
        case _:
            assert_never(event)


class EnrolNode(msgspec.Struct, frozen=True, kw_only=True):
    """Let a node speak with this key, or change its key or its url. A retired node comes back by it."""

    node: NodeId
    public_key: str
    url: str
    """`http(s)://host[:port]`; empty if only the node will know it (it says it when it registers)."""


class RetireNode(msgspec.Struct, frozen=True, kw_only=True):
    """Say that a node will not come back: what it has open is orphaned."""

    node: NodeId


NodeCommand = EnrolNode | RetireNode


def decide(command: NodeCommand, state: NodeState) -> list[NodeEvent]:
    """Return what `command` makes happen. An empty list means that it asks for what already is.

    Raises:
        BadIdError: the node's id has not the form of one.
        BadNodeError: its key or url has not the form of one, or there is no such node to retire.
    """
    node_id(command.node)
    match command:
        case EnrolNode():
            return _enrol(command, state)
        case RetireNode():
            if state.enrolled is None and not state.retired:
                raise BadNodeError(f"node {command.node}: there is no such node to retire")
            return [] if state.retired else [NodeRetired(node=command.node)]
        case _:
            assert_never(command)


def _enrol(command: EnrolNode, state: NodeState) -> list[NodeEvent]:
    if not _PUBLIC_KEY.fullmatch(command.public_key):
        raise BadNodeError(
            f"node {command.node}: public key must be a user nkey (U and 55 more characters), "
            f"got {command.public_key[:12]!r}"
        )
    if command.url and not _URL.fullmatch(command.url):
        raise BadNodeError(f"node {command.node}: url must be http(s)://host[:port], got {command.url[:80]!r}")
    enrolled = NodeEnrolled(node=command.node, public_key=command.public_key, url=command.url)
    return [] if enrolled == state.enrolled else [enrolled]
