"""`loads`: what nodes loaded, for whom, how long it took, and what became of the models that had to leave."""

from typing import Final

from domain.events import (
    Input,
    Loaded,
    LoadFailed,
    LoadStarted,
    RestoreCancelled,
    Restored,
    RestoreScheduled,
    Unloaded,
)
from projections.decision_log import Speaker
from projections.rows import Place, Row, row

KINDS: Final[dict[str, str]] = {
    "load_started": "the engine begins to load the model",
    "loaded": "the model is ready; load_us is cost data whatever the cause",
    "load_failed": "the load ended without a ready model, or a ready engine is gone; it teaches nothing",
    "unloaded": "the model left the engine",
    "restore_scheduled": "what borrowed work displaced will be loaded back after delay_us of quiet",
    "restored": "the displaced model is back",
    "restore_cancelled": "it is not loaded back this time: reason says what came first",
}
"""Every kind of row with what it says."""


def fact_rows(place: Place, fact: Input, speaker: Speaker, router: str) -> list[Row]:
    """Return the row of a fact about a node's models; none for any other fact."""
    said = _said(fact)
    if said is None:
        return []
    head: dict[str, object] = {
        "node": str(speaker.node),
        "producer": str(speaker.node),
        "incarnation": str(speaker.incarnation),
        "pseq": speaker.pseq,
        "router": router,
    }
    return [row(place, head | said)]


def _said(fact: Input) -> dict[str, object] | None:
    said: dict[str, object]
    match fact:
        case LoadStarted():
            said = {"kind": "load_started", "cause": fact.cause}
        case Loaded():
            said = {"kind": "loaded", "cause": fact.cause, "load_us": fact.load_us, "ok": True}
            said |= {"displaced": fact.displaced or ""}
        case LoadFailed():
            said = {"kind": "load_failed", "cause": fact.cause, "reason": fact.reason}
        case Unloaded():
            said = {"kind": "unloaded", "cause": fact.cause}
        case RestoreScheduled():
            said = {"kind": "restore_scheduled", "cause": "restore", "delay_us": fact.delay_us}
        case Restored():
            said = {"kind": "restored", "cause": "restore", "load_us": fact.load_us, "ok": True}
        case RestoreCancelled():
            said = {"kind": "restore_cancelled", "cause": "restore", "reason": fact.reason}
        case _:
            return None
    return said | {"model": fact.model}
