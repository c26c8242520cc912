"""What the fold reads: stored messages after the reader judged them."""

from typing import Final

import msgspec

from domain.events import ControlEvent, Input
from domain.ids import Incarnation, NodeId


class FactInput(msgspec.Struct, frozen=True, gc=False):  # one a message; none can stand in a cycle
    """A fact or an observation that the reader let pass."""

    seq: int
    stamp_us: int
    speaker: NodeId
    """The node; empty for an observation of the master."""
    incarnation: Incarnation
    pseq: int
    late: bool
    term: int
    """The observing master's term; 0 for a node's fact."""
    fact: Input


class Rejected(msgspec.Struct, frozen=True, gc=False):  # one a message; none can stand in a cycle
    """A message that the reader refused: it is part of the range, counted and named, but not folded."""

    seq: int
    stamp_us: int
    code: str
    speaker: NodeId = NodeId("")
    """The node, where it surely said this and only what it said is unreadable: its next fact is then no gap."""
    incarnation: Incarnation = Incarnation("")
    pseq: int = 0


NOT_A_FACT: Final = "not_a_fact"
"""Code of an event that no rule reads (a gateway's); it is not refused, and stands in no commit."""


class ControlInput(msgspec.Struct, frozen=True):
    """A control event. Only operators may write LW_CONTROL; the broker sees to it."""

    seq: int
    event: ControlEvent | None
    """None: an event of a kind that this version does not know; only the position moves."""


FactOrRejected = FactInput | Rejected
"""What the reader makes of one message of LW_EVENTS."""
