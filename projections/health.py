"""`health`: how nodes and their models were, by whoever said it."""

import re
from collections.abc import Mapping
from typing import Final

from domain.events import (
    Accepting,
    BreakerChanged,
    Decision,
    Draining,
    FactsSummarised,
    HeartbeatMissed,
    HeartbeatSeen,
    Input,
    NodeHealthChanged,
    NotAccepting,
    Observation,
    Registered,
    Stopped,
)
from domain.events.commit import Commit
from domain.ids import NodeId
from projections.decision_log import Speaker
from projections.rows import Place, Row, row

KINDS: Final[dict[str, str]] = {
    "changed": "master: what it takes the node for, from here on",
    "breaker": "master: a helper's model failed one lent request after another (opened), is tried (half_open), serves (closed)",
    "heartbeat_missed": "master: nothing was heard of the node for silent_us",
    "heartbeat_seen": "master: it is heard again",
    "registered": "node: a process of it began",
    "accepting": "node: the model takes borrowed work",
    "not_accepting": "node: the model takes none for now; reason says why",
    "draining": "node: it ends what it has and takes nothing new",
    "stopped": "node: its process ended in order",
    "facts_summarised": "node: its spool was full; reason counts the facts that are lost as such, and a snapshot follows",
}
"""Every kind of row with what it says."""

_NAMED_MAX: Final = 32
_TAG: Final = re.compile(r"[a-z_]{1,32}\.[a-z_]{1,32}")


def commit_rows(place: Place, commit: Commit, router: str) -> list[Row]:
    """Return one row for each decision about a node's health in this commit."""
    head: dict[str, object] = {"generation": str(commit.generation), "version": commit.version, "router": router}
    stated = [said for said in map(_decided, commit.decisions) if said is not None]
    return [row(place, head | {"item": item} | said) for item, said in enumerate(stated)]


def fact_rows(place: Place, fact: Input, speaker: Speaker, router: str) -> list[Row]:
    """Return the row of what a node says of itself, or the master saw of it; none for any other fact."""
    said = _seen(fact) if isinstance(fact, Observation) else _stated(fact, speaker.node)
    if said is None:
        return []
    head: dict[str, object] = {
        "producer": str(speaker.node),
        "incarnation": str(speaker.incarnation),
        "pseq": speaker.pseq,
        "router": router,
    }
    return [row(place, head | said)]


def _decided(decision: Decision) -> dict[str, object] | None:
    match decision:
        case NodeHealthChanged():
            return {"kind": "changed", "node": decision.node, "state": decision.state, "reason": decision.reason}
        case BreakerChanged():
            said: dict[str, object] = {"kind": "breaker", "node": decision.helper, "model": decision.model}
            return said | {"state": decision.state, "failures": decision.failures}
        case _:
            return None


def _seen(fact: Observation) -> dict[str, object] | None:
    match fact:
        case HeartbeatMissed():
            return {"kind": "heartbeat_missed", "node": fact.node, "silent_us": fact.silent_us}
        case HeartbeatSeen():
            return {"kind": "heartbeat_seen", "node": fact.node}
        case _:
            return None


def _stated(fact: Input, node: NodeId) -> dict[str, object] | None:
    said: dict[str, object]
    match fact:
        case Registered():
            said = {"kind": "registered", "node_version": fact.version}
        case Accepting():
            said = {"kind": "accepting", "model": fact.model}
        case NotAccepting():
            said = {"kind": "not_accepting", "model": fact.model, "reason": fact.reason}
        case Draining():
            said = {"kind": "draining"}
        case Stopped():
            said = {"kind": "stopped"}
        case FactsSummarised():
            said = {"kind": "facts_summarised", "reason": _counted(fact.counts)}
        case _:
            return None
    return said | {"node": node}


def _counted(counts: Mapping[str, int]) -> str:
    """Return how many facts of which tag are lost, by tag; a node chooses the words, so only tags are named."""
    named = {tag: count for tag, count in sorted(counts.items()) if _TAG.fullmatch(tag)}
    shown = dict(list(named.items())[:_NAMED_MAX])
    rest = sum(counts.values()) - sum(shown.values())
    return ", ".join([*(f"{count} {tag}" for tag, count in shown.items()), *([f"{rest} others"] if rest else [])])
