"""The life of `leaseway up` itself: what it leaves behind when it is asked to stop, and when it is killed."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.data_directory import holder_of
from tests.support.family import children, command_of
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
CONFIG = '[[nodes]]\nid = "studio"\n[[nodes.models]]\nid = "chat"\nurl = "http://127.0.0.1:9"\n'
PARTS = {"nats-server", "projector", "master", "node", "gateway", "console"}


@contextlib.asynccontextmanager
async def up(folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `leaseway up` on `folder` until the block ends; ready when the block begins."""
    (folder / "leaseway.toml").write_text(CONFIG)
    flags = ("--config", "leaseway.toml", "--data", "data", "--port-base", "0")
    with (folder / "up.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "services.cli", "up", *flags),
            cwd=folder,
            env={name: value for name, value in os.environ.items() if not name.startswith("LEASEWAY_")},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    family: list[tuple[int, list[str]]] = []
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            while line := await process.stdout.readline():
                if json.loads(line).get("ready") == "data":
                    break
            else:
                raise AssertionError((folder / "up.log").read_text())
        family = [(pid, list(command)) for pid, command in children(process.pid)]
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        for pid, command in family:
            if command_of(pid) == command:
                os.kill(pid, signal.SIGKILL)


def living(family: list[tuple[int, list[str]]]) -> list[list[str]]:
    """Return the commands of those that still run."""
    return [command for pid, command in family if command_of(pid) == command]


async def test_sigterm_stops_everything_and_gives_the_data_directory_free(tmp_path: Path):
    async with up(tmp_path) as process:
        family = [(pid, list(command)) for pid, command in children(process.pid)]
        assert len(family) == len(PARTS)
        await until(
            "word of its engine",
            lambda: "studio/chat: its engine is not there (yet)" in (tmp_path / "up.log").read_text(),
        )
        assert holder_of(tmp_path / "data") == process.pid
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 0
        assert living(family) == []
        assert holder_of(tmp_path / "data") is None


async def test_a_killed_supervisor_leaves_nothing_that_is_in_the_way_of_the_next(tmp_path: Path):
    async with up(tmp_path) as process:
        family = [(pid, list(command)) for pid, command in children(process.pid)]
        process.kill()
        await process.wait()
        ours = [(pid, command) for pid, command in family if "services.cli" in command]
        assert len(ours) == len(PARTS) - 1
        await until("our processes to end by themselves", lambda: living(ours) == [], timeout_s=30)
    async with up(tmp_path) as again:
        again.terminate()
        assert await asyncio.wait_for(again.wait(), 30) == 0
    assert living(family) == []


async def test_a_second_signal_does_not_wait_for_the_drain_and_leaves_nothing_behind(tmp_path: Path):
    async with up(tmp_path) as process:
        family = [(pid, list(command)) for pid, command in children(process.pid)]
        process.terminate()
        await until("the drain", lambda: '"draining"' in (tmp_path / "up.log").read_text())
        process.terminate()
        # 0 if the drain, which has nothing to wait for, was over first
        assert await asyncio.wait_for(process.wait(), 30) in {0, 128 + signal.SIGTERM}
        assert living(family) == []


async def cli(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Return (exit code, standard output, standard error) of a command on `folder`'s data."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "services.cli", *arguments, "--data", str(folder / "data")),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, out.decode(), err.decode()


async def test_a_lost_tail_is_said_and_an_operator_goes_on_by_one_command(tmp_path: Path):
    async with up(tmp_path) as process:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 0
    checkpoint = tmp_path / "data" / "checkpoint.json"
    seen = json.loads(checkpoint.read_text())
    checkpoint.write_text(json.dumps({**seen, "version": seen["version"] + 5}))
    async with up(tmp_path):
        assert "safe mode: stored history is in doubt: ledger:" in (tmp_path / "up.log").read_text()
        code, out, err = await cli(tmp_path, "status")
        assert code == 1
        assert f"but the data directory has seen version {seen['version'] + 5}" in out
        assert "--new-generation" in err
        code, _, err = await cli(tmp_path, "provision", "--new-generation")
        assert (code, err.count("\n")) == (2, 1), "a reason must be given"
        code, out, err = await cli(
            tmp_path, "provision", "--new-generation", "--reason", "the tail was lost, we looked"
        )
        assert code == 0, err
        assert out.startswith("generation 0002")
        await until("the master to go on", lambda: is_well(tmp_path), timeout_s=20, every_s=0.2)
        code, out, err = await cli(tmp_path, "audit", "verify")
        assert code == 0, out + err


async def is_well(folder: Path) -> bool:
    """Tell whether the master decides; nothing is where the engine of these tests should be, which `status` says by its code."""
    code, out, err = await cli(folder, "status")
    rows = {row["process"]: row for row in map(json.loads, out.splitlines()) if "well" in row}
    if not rows["master"]["well"]:
        return False
    wrong = {name: (row["state"], row["said"]) for name, row in rows.items() if not row["well"]}
    assert (code, wrong) == (1, {"node studio": ("degraded", "engine down: chat")})
    assert f"why is in {folder / 'data' / 'logs'}/node-<id>.log" in err
    return True
