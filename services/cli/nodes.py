"""`leaseway nodes`: every node, its models, and what they have to do."""

import argparse
import asyncio
from typing import Any

from domain.errors import UnreachableError
from services.cli.history import bus_of, registered
from services.cli.reach import Here, here, sure_state
from services.cli.show import Output, note
from services.lifecycle import EXIT_OK
from services.texts.plain import Row

# what `leaseway status` or --json has as well is left out: with it the table is wider than a terminal of 80 columns
_KNOWN = {
    "node": "node", "health": "health", "model": "model", "engine": "engine", "ready": "loaded", "held": "held",
    "in_engine": "in engine", "lent": "lent", "samples": "samples",
}  # fmt: skip
_SAID = {"node": "node", "model": "model", "engine": "engine", "depth": "depth", "lane": "lane", "url": "url"}


def run(parsed: argparse.Namespace) -> int:
    """Print one row for each node and model."""
    asyncio.run(_nodes(here(parsed), Output(as_json=parsed.json)))
    return EXIT_OK


async def _nodes(place: Here, out: Output) -> None:
    try:
        state = await sure_state(place)
    except UnreachableError as error:
        note(
            f"{error}\nread from NATS instead: what each node said when it registered; queues and health are not known"
        )
        async with bus_of(place) as bus:
            said = await registered(bus)
        rows: list[Row] = [
            {
                "node": node, "url": fact.url, "depth": fact.depth, "model": model.id, "lane": model.lane,
                "engine": model.engine, "slots": model.slots, "context": model.context, "source": "nats",
            }
            for node, fact in said.items()
            for model in fact.models
        ]  # fmt: skip
        out.rows("Nodes, as they said", rows, _SAID, none="no node has registered")
        return
    show(state["nodes"], out)


def show(nodes: list[dict[str, Any]], out: Output) -> None:
    """Print what a master knows of `nodes`: one row for each of their models."""
    out.rows("Nodes", [row for node in nodes for row in _rows_of(node)], _KNOWN, none="no node has registered")


def _rows_of(node: dict[str, Any]) -> list[Row]:
    about = {key: value for key, value in node.items() if key != "models"}
    models = node.get("models") or [{}]
    return [{**about, "model": model.get("id"), **{k: v for k, v in model.items() if k != "id"}} for model in models]
