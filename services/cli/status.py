"""`leaseway status`: which processes answer, and what the master knows."""

import argparse
import asyncio
import json
from typing import Any, Final
from urllib.parse import urlsplit

from domain.errors import UnreachableError
from services.cli.reach import Here, fetch, here, master_state
from services.cli.show import Output, note
from services.data_directory import is_standalone
from services.lifecycle import EXIT_FAILED, EXIT_OK
from services.texts.plain import Row

_GREETING_S: Final = 3.0


def run(parsed: argparse.Namespace) -> int:
    """Print the state of every process; 1 if one of them is not well."""
    return asyncio.run(_status(here(parsed), Output(as_json=parsed.json)))


async def _status(place: Here, out: Output) -> int:
    at = place.endpoints
    processes = [("gateway", at.gateway), ("projector", at.projector), *(("master", url) for url in place.masters)]
    if is_standalone(place.config.data) or place.config.urls.console:  # a cluster of machines need not have one
        processes.append(("console", at.console))
    processes += [(f"node {node}", url) for node, url in (at.nodes or await _nodes(place)).items()]
    asked = [_health(place, name, url, "/health") for name, url in processes]
    if is_standalone(place.config.data):
        asked.append(_health(place, "nats-server", at.monitor, "/healthz"))
    else:  # elsewhere a monitor listens at its own machine's loopback only
        asked += [_greeting(url.strip()) for url in place.bus_url.split(",")]
    rows = await asyncio.gather(*asked)
    if all(row["state"] == "silent" for row in rows):
        raise UnreachableError(
            f"nothing answers, neither master {at.master} nor nats-server {at.nats}; {place.start_hint()}"
        )
    out.rows("Processes", rows, {"process": "process", "url": "url", "state": "state", "said": "says"})
    masters = [row for row in rows if row["process"] == "master"]
    master = min(masters, key=lambda row: (row["state"] != "active", not row["well"]))
    doubting = [row for row in masters if row["state"] == "safe_mode"]
    for row in doubting:
        note(f"the master at {row['url']} grants nothing, since stored history is in doubt: {row['doubt']}")
    if master["well"]:
        await _say_master(place, out)
    elif doubting:
        note(
            "to go on without what is lost, `leaseway provision --new-generation --reason TEXT` begins a new history and keeps "
            "the old one"
        )
    elif master["state"] == "starting":
        note(
            "the master is still checking stored history: no new leases until then, every node serves its own requests"
        )
    else:
        note(
            "the master does not answer: no new leases, every node serves its own requests; `leaseway nodes` reads NATS"
        )
    if any(row["state"] == "degraded" for row in rows):
        note(f"requests of a model whose engine is down are refused until it is there; {_why_down(place)}")
    return EXIT_OK if all(row["well"] for row in rows) else EXIT_FAILED


def _why_down(place: Here) -> str:
    if is_standalone(place.config.data):
        return f"why is in {place.config.data / 'logs'}/node-<id>.log"
    return "the node's own log says why"


async def _nodes(place: Here) -> dict[str, str]:
    """Return where the enrolled nodes of a cluster of machines are, as a master knows it; nothing if none answers."""
    try:
        state = await master_state(place)
    except UnreachableError:
        return {}
    return {node["node"]: node["url"] for node in state.get("nodes", ()) if node["registered"] and not node["retired"]}


async def _health(place: Here, name: str, url: str, path: str) -> Row:
    try:
        status, said = await fetch(place, name, url, path)
    except UnreachableError as error:
        return {"process": name, "url": url, "well": False, "state": "silent", "said": str(error)}
    state = str(said.get("status", "ok")) if isinstance(said, dict) else "ok"
    down = engines_down(said)
    told = f"engine down: {', '.join(down)}" if down else _brief(said)
    doubt = str(said.get("doubt", "")) if isinstance(said, dict) else ""
    return {
        "process": name,
        "url": url,
        "well": status == 200 and not down,
        "state": state,
        "said": told,
        "doubt": doubt,
    }


def engines_down(health: Any) -> list[str]:
    """Return the models that a node cannot serve now, by what it says of its health; none of who has no models."""
    models = health.get("models") if isinstance(health, dict) else None
    return sorted(str(model) for model, able in models.items() if able is False) if isinstance(models, dict) else []


async def _greeting(url: str) -> Row:
    """Return whether a NATS server greets at `url`, and by which name and version; no key is needed for that."""
    row: Row = {"process": "nats-server", "url": url, "well": False, "state": "silent", "said": ""}
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(_GREETING_S):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 4222)
            try:
                said = json.loads((await reader.readline()).removeprefix(b"INFO "))
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError) as error:
        return {**row, "said": f"nats-server {url}: cannot be reached: {error}"}
    return {
        **row,
        "well": True,
        "state": "ok",
        "said": f"server_name={said.get('server_name')} version={said.get('version')}",
    }


def _brief(said: Any) -> str:
    if not isinstance(said, dict):
        return ""
    return " ".join(
        f"{key}={'no' if value is False else value}"
        for key, value in said.items()
        if isinstance(value, str | int) and value != "" and value is not True and key != "status"
    )[:200]


async def _say_master(place: Here, out: Output) -> None:
    state = await master_state(place)
    row = {
        "safe_mode": bool(state.get("safe_mode")),
        "generation": state.get("generation"),
        "version": state.get("version"),
        "term": state.get("term"),
        "policy": state.get("policy"),
        "nodes": len(state.get("nodes", ())),
        "links": len(state.get("links", ())),
        "leases": len(state.get("leases", ())),
    }
    out.rows("Master", [{"process": "master", **row}], {name: name.replace("_", " ") for name in row})
    leases = state.get("leases", ())
    if leases and not out.as_json:
        columns = {
            "owner": "owner", "helper": "helper", "lease": "lease", "slots": "slots", "out": "out",
            "job_us": "job", "gain_us": "gain", "source": "priced by",
        }  # fmt: skip
        out.rows("Live leases", leases, columns)
