"""`leaseway up`: everything on this machine, until Ctrl-C or SIGTERM."""

import argparse
import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import aiohttp

from services.cli.show import Output, Waiting, note
from services.cli.status import engines_down
from services.config import Config
from services.config_file import STANDALONE_DEFAULTS, config_path, load_config, stated_nodes
from services.data_directory import Endpoints, held_data
from services.lifecycle import Ready, run_service
from services.standalone.logs import Tail, follow
from services.standalone.main import Standalone, StoppedEarlyError, running
from services.standalone.ports import plan_ports
from services.texts.plain import Row

_ANSWER_S: Final = 5.0
LOOK_EVERY_S: Final = 5.0
"""The master is asked for safe mode so often."""


def run(parsed: argparse.Namespace) -> int:
    """Start everything that the configuration states; return the exit code once it has ended."""
    config = load_config(parsed.config, data=parsed.data, defaults=STANDALONE_DEFAULTS)
    ports = plan_ports(parsed.port_base, stated_nodes(config), gateway=config.http.port)
    standalone = Standalone(config, ports, config_path=config_path(parsed.config))
    standalone.check()

    async def up(config: Config, _ready: Ready, stop: asyncio.Event) -> None:
        await _up(standalone, config, stop, logs=parsed.logs)

    with held_data(config.data):
        return run_service("up", up, config, level="warning" if sys.stderr.isatty() else "")


async def _up(standalone: Standalone, config: Config, stop: asyncio.Event, *, logs: bool) -> None:
    waiting = Waiting()
    tail = asyncio.ensure_future(follow(Tail(config.data / "logs"), sys.stderr.write)) if logs else None
    try:
        async with running(standalone, waiting, stop) as endpoints:
            doubt = await doubt_of(endpoints)
            waiting.done()
            announce(endpoints, config.data, doubt=doubt)
            await _say_down(endpoints, config.data)
            await watch_doubt(endpoints.master, doubt, stop)
    except StoppedEarlyError:
        pass
    finally:
        waiting.done()
        if tail is not None:
            tail.cancel()


async def _say_down(endpoints: Endpoints, data: Path) -> None:
    """Say which models cannot be served yet: everything else is up, and their engines are tried again and again."""
    for node, url in endpoints.nodes.items():
        for model in engines_down(await _health_of(url)):
            log = data / "logs" / f"node-{node}.log"
            note(f"{node}/{model}: its engine is not there (yet), so its requests are refused; why is in {log}")


async def doubt_of(endpoints: Endpoints) -> str:
    """Return why the master is in safe mode; empty if it is not, or does not say."""
    said = await _health_of(endpoints.master)
    return str(said["doubt"]) if said.get("status") == "safe_mode" else ""


async def watch_doubt(master: str, doubt: str, stop: asyncio.Event, *, every_s: float = LOOK_EVERY_S) -> None:
    """Say when the master comes into safe mode, or leaves it, until `stop` is set: what a node shows may come at any time."""
    while not stop.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(every_s):
                await stop.wait()
        if stop.is_set():  # a master that does not answer would hold up the end
            return
        said = await _health_of(master)
        status = said.get("status")
        if status == "safe_mode" and not doubt:
            doubt = str(said["doubt"])
            note("SAFE MODE: from now on nothing is lent, every node serves its own requests")
            say_doubt(doubt)
        elif status in {"active", "standby"} and doubt:
            doubt = ""
            note("the master has left safe mode: there is lending again")


def say_doubt(doubt: str) -> None:
    """Say why there is safe mode, and what to do."""
    note(f"safe mode: stored history is in doubt: {doubt}")
    note(
        "look at it with `leaseway audit verify`; `leaseway provision --new-generation --reason TEXT` goes on without it"
    )


async def _health_of(url: str) -> dict[str, Any]:
    """Return what a process says of itself; nothing if it says nothing."""
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{url}/health") as answer:
            said: dict[str, Any] = json.loads(await answer.text())
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return {}
    return said


def announce(endpoints: Endpoints, data: Path, *, doubt: str = "") -> None:
    """Print what listens where, and loudly if nothing will be lent."""
    rows: list[Row] = [{"ready": "SAFE MODE", "url": endpoints.master, "for": doubt}] if doubt else []
    rows += [
        {"ready": "gateway", "url": endpoints.gateway, "for": "clients: POST /v1/chat/completions, GET /v1/models"}
    ]
    for node, url in endpoints.nodes.items():
        rows.append({"ready": f"node {node}", "url": url, "for": "clients of this node alone, and other nodes"})
        rows += [{"ready": f"engine of {node}", "url": engine, "for": "its node"} for engine in endpoints.engines[node]]
    rows += [
        {"ready": "console", "url": endpoints.console, "for": "people, in a browser"},
        {"ready": "projector", "url": endpoints.projector, "for": "leaseway decisions"},
        {"ready": "master", "url": endpoints.master, "for": "leaseway status, nodes, links"},
        {"ready": "nats-server", "url": endpoints.nats, "for": "leaseway events tail, audit verify"},
        {"ready": "data", "url": str(data), "for": "history, keys, logs/"},
    ]
    title = (
        "Leaseway is up"
        if not doubt
        else "Leaseway is up in SAFE MODE: nothing is lent, every node serves its own requests"
    )
    Output(as_json=False).rows(title, rows, {"ready": "what", "url": "url", "for": "for"})
    if doubt:
        say_doubt(doubt)
