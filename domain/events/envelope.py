"""The one JSON object around every event: CloudEvents 1.0 (JSON format) with our extension attributes."""

import msgspec

from domain.ids import Incarnation, NodeId


class Basis(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A fact named by its producer's incarnation and its place there."""

    node: NodeId
    incarnation: Incarnation
    pseq: int


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """CloudEvents attributes first, then ours, then `data`, then (in the bytes, after all else) `mac` or `sig`.

    The authentication tag covers all bytes before it, so it is appended to the encoded object (domain.events.codec).
    """

    specversion: str = "1.0"
    id: str
    """`<incarnation>/<pseq>` for a fact, `<generation>-<version>-<index>` for a decision."""
    source: str
    """`/<cluster>/node/<node>`, `/<cluster>/gateway/<id>`, `/<cluster>/master` or `/<cluster>/control/<aggregate>`."""
    type: str
    """The tag of `data`."""
    time: str = ""
    """RFC 3339, the producer's wall clock: for people, never read by a rule."""
    datacontenttype: str = "application/json"
    cluster: str
    producer: str
    """The node (or master, gateway, operator) that says it."""
    incarnation: Incarnation = Incarnation("")
    pseq: str = "0"
    """Decimal; without gaps within an incarnation, from 1."""
    mono_us: int = 0
    """The producer's monotonic clock."""
    cause: str = ""
    """Id of the event or request that led to this one."""
    schema: int = 1
    late: bool = False
    """It came from a spool, after an outage."""
    data: msgspec.Raw
