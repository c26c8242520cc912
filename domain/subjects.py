"""Subjects: one table from event to subject. Only ids and tokens that cannot hold a dot, star or space stand in one."""

from domain.events import (
    BreakerChanged,
    ControlEvent,
    Decision,
    Input,
    LeaseRefused,
    NodeHealthChanged,
    OwnerPlanned,
    RequestOrphaned,
    RequestPresumedLost,
    SafeModeEntered,
    SafeModeLeft,
)
from domain.events.base import tag_of
from domain.ids import ModelId, NodeId, model_token

EVENTS, CONTROL, LEDGER, DECISIONS, SNAPSHOTS = "LW_EVENTS", "LW_CONTROL", "LW_LEDGER", "LW_DECISIONS", "LW_SNAP"
"""Names of the streams."""


def root(cluster: str) -> str:
    """Return what every subject of `cluster` begins with."""
    return f"lw.{cluster}"


def fact_subject(cluster: str, node: NodeId, fact: Input) -> str:
    """Return the subject of a fact that `node` states."""
    family, event = tag_of(fact).split(".")
    if family == "status":
        return f"lw.{cluster}.node.{node}.status.{event}"
    if family == "lend" or (family == "borrow" and hasattr(fact, "link")):
        link = fact.link if isinstance(fact, LeaseRefused) else getattr(fact, "link", "")
        return f"lw.{cluster}.node.{node}.{family}.{link}.{event}"
    model: ModelId = getattr(fact, "model", ModelId(""))
    return f"lw.{cluster}.node.{node}.{family}.{model_token(model)}.{event}"


def observation_subject(cluster: str, term: int, fact: Input) -> str:
    """Return the subject of an observation of the master whose term is `term`."""
    return f"lw.{cluster}.obs.{term}.{tag_of(fact).split('.')[1]}"


def speaker(subject: str) -> tuple[str, str]:
    """Return (kind, name) of who may speak on a stored subject: ("node", id), ("gateway", id), ("obs", term) or ("", "")."""
    parts = subject.split(".")
    if len(parts) >= 5 and parts[0] == "lw" and parts[2] in {"node", "gateway", "obs"}:
        return parts[2], parts[3]
    return "", ""


def event_of(subject: str) -> str:
    """Return the tag that a stored fact's subject promises, `<family>.<event>`; empty if it promises none."""
    parts = subject.split(".")
    if len(parts) == 5 and parts[2] == "obs":
        return f"obs.{parts[4]}"
    if len(parts) >= 6 and parts[2] == "node":
        return f"{parts[4]}.{parts[-1]}"
    return ""


def decision_subject(cluster: str, decision: Decision) -> str:
    """Return the subject of a published decision.

    Raises:
        ValueError: plans are part of a commit only; they are not published.
    """
    match decision:
        case OwnerPlanned():
            raise ValueError("a plan is not published: read it in its commit")
        case NodeHealthChanged(node=node):
            return f"lw.{cluster}.health.{node}.{decision.state}"
        case BreakerChanged(helper=helper):
            return f"lw.{cluster}.breaker.{helper}.{decision.state}"
        case RequestPresumedLost(node=node) | RequestOrphaned(node=node):
            return f"lw.{cluster}.request.{node}.{tag_of(decision).split('.')[1]}"
        case SafeModeEntered() | SafeModeLeft():
            return f"lw.{cluster}.safe_mode.{tag_of(decision).split('.')[1]}"
        case _:
            return f"lw.{cluster}.lease.{decision.owner}.{decision.helper}.{decision.link}.{tag_of(decision).split('.')[1]}"


def control_subject(cluster: str, aggregate: str) -> str:
    """Return the one subject of a control aggregate; `aggregate` is `<kind>.<id>`."""
    return f"lw.{cluster}.control.{aggregate}"


def ledger_subject(cluster: str) -> str:
    """Return the one subject of the ledger."""
    return f"lw.{cluster}.ledger"


def snapshot_subject(cluster: str, version: int, part: int) -> str:
    """Return the subject of part `part` (from 0) of the snapshot at `version`."""
    return f"lw.{cluster}.snap.{version}.{part}"


def heartbeat_subject(cluster: str, node: NodeId) -> str:
    """Return the core subject of a node's heartbeats; they are not stored."""
    return f"lw.{cluster}.hb.{node}"


def control_aggregate(event: ControlEvent) -> str:
    """Return `<kind>.<id>` of the control aggregate that an event belongs to."""
    kind = tag_of(event).split(".")[1].split("_")[0]
    match kind:
        case "link":
            return f"links.{getattr(event, 'link')}"  # noqa: B009  # every link event has one
        case "node":
            return f"nodes.{getattr(event, 'node')}"  # noqa: B009  # every node event has one
        case _:
            return "settings.cluster"
