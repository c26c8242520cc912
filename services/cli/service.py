"""`leaseway master | node | gateway | projector | console`: one process of a cluster."""

import argparse
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from domain.errors import BadConfigError
from services.config import Config, NodeConfig
from services.config_file import load_config, with_node
from services.config_rules import missing_programs, unreachable
from services.data_directory import check_data, held_data
from services.lifecycle import run_service

_PORTS = {"gateway": 8000, "node": 8100, "projector": 8200, "master": 8300, "console": 8500}
_WITHOUT_DATA = frozenset({"console"})
"""Keep nothing, and have no key: their data directory is another process' own, of which they read where the others listen."""


def run(parsed: argparse.Namespace) -> int:
    """Run the service that `parsed` names and return its exit code."""
    defaults = {"http.port": _PORTS[parsed.service]}
    config = load_config(parsed.config, data=parsed.data, overrides=_overrides(parsed), defaults=defaults)
    if parsed.service == "node":
        config = _for_node(config, parsed)
    service = importlib.import_module(f"services.{parsed.service}.main")
    with _data(config.data, held_by_us=not (parsed.supervised or parsed.service in _WITHOUT_DATA)):
        return run_service(parsed.service, service.run, config, supervised=parsed.supervised)


def _overrides(parsed: argparse.Namespace) -> dict[str, object]:
    said = {
        "http.host": parsed.host,
        "http.port": parsed.port,
        "bus.url": getattr(parsed, "bus", None),
        "bus.credentials": getattr(parsed, "credentials", None),
    }
    return {key: value for key, value in said.items() if value is not None}


def _for_node(config: Config, parsed: argparse.Namespace) -> Config:
    config = with_node(config, parsed.node)
    if not config.node.models:
        raise BadConfigError(f"node {config.node.id}: models: must hold at least one, got none; see docs/start.md")
    node = with_engine_ports(config.node, parsed.engine_ports) if parsed.engine_ports else config.node
    for problem in (*unreachable(config), *missing_programs(node)):
        raise BadConfigError(f"{problem.key}: {problem.rule}, got {problem.value!r}")
    return msgspec.structs.replace(config, node=node)


def with_engine_ports(node: NodeConfig, first: int) -> NodeConfig:
    """Return `node` with the engines that it starts at `first`, `first` + 1, ... unless their port is stated."""
    models = []
    for model in node.models:
        if model.command and not model.port:
            models.append(msgspec.structs.replace(model, port=first))
            first += 1
        else:
            models.append(model)
    return msgspec.structs.replace(node, models=tuple(models))


@contextmanager
def _data(path: Path, *, held_by_us: bool) -> Iterator[None]:
    """Hold the data directory, unless it is another process' to hold."""
    if not held_by_us:
        check_data(path)
        yield
        return
    with held_data(path):
        yield
