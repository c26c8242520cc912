"""`requests`: how each request ended. One row for its one terminal event: a fact of its owner, or the master's `orphaned`."""

import re
from typing import Final

from domain.events import Cancelled, Expired, Failed, Finished, Input, Rejected, RequestOrphaned
from domain.events.commit import Commit
from projections.decision_log import Speaker
from projections.rows import Place, Row, row

OUTCOMES: Final = ("finished", "failed", "cancelled", "rejected", "expired", "orphaned")
"""How a request can end: exactly one of these."""

_CODE: Final = re.compile(r"[a-z0-9_.-]{0,64}")


def fact_rows(place: Place, fact: Input, speaker: Speaker, router: str) -> list[Row]:
    """Return the row of a terminal fact; none for any other fact."""
    outcome = _outcome(fact)
    if outcome is None:
        return []
    assert isinstance(fact, Finished | Failed | Cancelled | Rejected | Expired)
    stated: dict[str, object] = {
        "request": fact.request,
        "outcome": outcome,
        "owner": str(speaker.node),
        "model": fact.model,
        "helper": fact.helper,
        "status": fact.status,
        # a code is a word of ours; an engine's sentence in its place may quote the prompt
        "code": fact.code if _CODE.fullmatch(fact.code) else "not_a_code",
        "work": fact.work,
        "wait_us": fact.wait_us,
        "service_us": fact.service_us,
        "tokens_in": fact.tokens_in,
        "tokens_out": fact.tokens_out,
        "producer": str(speaker.node),
        "incarnation": str(speaker.incarnation),
        "pseq": speaker.pseq,
        "router": router,
    }
    return [row(place, stated)]


def commit_rows(place: Place, commit: Commit, router: str) -> list[Row]:
    """Return one row for each request that the master gave up in this commit."""
    orphaned = [decision for decision in commit.decisions if isinstance(decision, RequestOrphaned)]
    head: dict[str, object] = {
        "outcome": "orphaned",
        "code": "orphaned",
        "generation": str(commit.generation),
        "version": commit.version,
        "router": router,
    }
    return [
        row(
            place,
            head | {"item": item, "request": lost.request, "owner": str(lost.node), "model": lost.model},
        )
        for item, lost in enumerate(orphaned)
    ]


def _outcome(fact: Input) -> str | None:
    match fact:
        case Finished():
            return "finished"
        case Failed():
            return "failed"
        case Cancelled():
            return "cancelled"
        case Rejected():
            return "rejected"
        case Expired():
            return "expired"
        case _:
            return None
