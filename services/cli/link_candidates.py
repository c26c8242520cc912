"""`leaseway links candidates`: every model that could help one, and why others cannot."""

import argparse
import asyncio
from collections.abc import Collection

from domain.catalogue.eligibility import LinkCandidate, candidates
from domain.errors import BadLinkError, NotYetError
from domain.ids import ModelId, NodeId, link_id
from services.cli.reach import Here, here, sure_state
from services.cli.served import UNKNOWN_WEIGHTS, catalogue_of, label
from services.cli.show import Output, note
from services.ends import end
from services.lifecycle import EXIT_OK
from services.texts.plain import Row

_COLUMNS = {
    "helper": "helper", "helper_model": "model", "label": "weights", "eligible": "may help", "linked": "linked",
    "about": "why not",
}  # fmt: skip


def run(parsed: argparse.Namespace) -> int:
    """Print one row for each model of every other node."""
    asyncio.run(_candidates(here(parsed), *end("owner", parsed.owner), Output(as_json=parsed.json)))
    return EXIT_OK


async def _candidates(place: Here, owner: NodeId, model: ModelId, out: Output) -> None:
    catalogue = await catalogue_of(place)
    if not any(catalogue.values()):
        raise NotYetError("links candidates: no node has said yet what it serves; `leaseway nodes` shows when one has")
    if model not in catalogue.get(owner, {}):
        served = ", ".join(f"{node}/{name}" for node in sorted(catalogue) for name in sorted(catalogue[node])[:8])
        raise BadLinkError(f"owner {owner}/{model[:80]}: nobody serves it; served are {served[:400] or 'none'}")
    linked = {link["link"] for link in (await sure_state(place))["links"]}
    rows = [_row(owner, model, candidate, linked) for candidate in candidates(owner, model, catalogue)]
    none = "no other node serves anything"
    out.rows(f"Models that could help {owner}/{model}", rows, _COLUMNS, none=none)
    if any(row["weights"] == "unknown" for row in rows):
        note(UNKNOWN_WEIGHTS)


def _row(owner: NodeId, model: ModelId, candidate: LinkCandidate, linked: Collection[str]) -> Row:
    return {
        "owner": owner,
        "owner_model": model,
        "helper": candidate.node,
        "helper_model": candidate.model,
        "lane": candidate.lane,
        "weights": candidate.weights,
        "label": label(candidate.weights),
        "eligible": candidate.eligible,
        "reason": candidate.reason,
        "about": candidate.about,
        "linked": link_id(owner, model, candidate.node, candidate.model) in linked,
    }
