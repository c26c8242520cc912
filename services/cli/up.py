"""`leaseway up`: everything on this machine, until Ctrl-C or SIGTERM."""

import argparse
import asyncio
import sys
from pathlib import Path

from services.cli.show import Output, Row, Waiting
from services.config import Config
from services.config_file import STANDALONE_DEFAULTS, config_path, load_config, stated_nodes
from services.data_directory import Endpoints, held_data
from services.lifecycle import Ready, run_service
from services.standalone.logs import Tail, follow
from services.standalone.main import Standalone, StoppedEarlyError, running
from services.standalone.ports import plan_ports


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
            waiting.done()
            announce(endpoints, config.data)
            await stop.wait()
    except StoppedEarlyError:
        pass
    finally:
        waiting.done()
        if tail is not None:
            tail.cancel()


def announce(endpoints: Endpoints, data: Path) -> None:
    """Print what listens where."""
    rows: list[Row] = [
        {"ready": "gateway", "url": endpoints.gateway, "for": "clients: POST /v1/chat/completions, GET /v1/models"}
    ]
    for node, url in endpoints.nodes.items():
        rows.append({"ready": f"node {node}", "url": url, "for": "clients of this node alone, and other nodes"})
        rows += [{"ready": f"engine of {node}", "url": engine, "for": "its node"} for engine in endpoints.engines[node]]
    rows += [
        {"ready": "projector", "url": endpoints.projector, "for": "leaseway decisions"},
        {"ready": "master", "url": endpoints.master, "for": "leaseway status, nodes, links"},
        {"ready": "nats-server", "url": endpoints.nats, "for": "leaseway events tail, audit verify"},
        {"ready": "data", "url": str(data), "for": "history, keys, logs/"},
    ]
    Output(as_json=False).rows("Leaseway is up", rows, {"ready": "what", "url": "url", "for": "for"})
