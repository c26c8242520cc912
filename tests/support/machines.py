"""Three machines of a page of the docs on this one: each with an address of its own at loopback, and folders of its own."""

import asyncio
import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from adapters.nats.server import find_binary
from tests.support.pages import Commands, File, blocks
from tests.support.processes import ROOT, Told, leaseway
from tests.support.waiting import until

START_S = 60
_PORTS = {"master": 8300, "gateway": 8000, "node": 8100, "projector": 8200, "console": 8500}


class Machines:
    """Does what the page says."""

    def __init__(self, root: Path, engines: dict[str, str]) -> None:
        """`engines`: machine -> URL of its engine, which the page has at http://127.0.0.1:8080."""
        self.root, self._engines = root, engines
        self._net = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250) + 1}."
        self._token = secrets.token_hex(32)
        self.running: dict[str, asyncio.subprocess.Process] = {}
        """`<machine>:<command>` -> process."""
        self.http: aiohttp.ClientSession

    def here(self, text: str, machine: str) -> str:
        """Return `text` with the page's addresses, folders and placeholders as they are here."""
        text = text.replace("<openssl rand -hex 32>", self._token)
        text = text.replace("http://127.0.0.1:8080", self._engines.get(machine, "http://127.0.0.1:9"))
        text = re.sub(r"10\.0\.0\.(\d+)", rf"{self._net}\1", text)
        return re.sub(r"/(etc|var/lib)/leaseway", lambda found: f"{self.root}/{machine}/{found[1]}", text)

    def url(self, text: str) -> str:
        """Return a URL of the page as it is here."""
        return self.here(text, "a")

    async def follow(self, page: Path) -> None:
        """Write what the page shows and run what it runs, in its order."""
        for block in blocks(page):
            if isinstance(block, File):
                path = Path(self.here(block.path, block.machine))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self.here(block.text, block.machine))
            else:
                await self._do(block)

    async def _do(self, block: Commands) -> None:
        if block.kept:
            for line in block.lines:
                await self._keep(block.machine, shlex.split(line))
            return
        await self.all_ready()
        for line in block.lines:
            words = shlex.split(line)
            if words[0] == "scp":
                self._bring(block.machine, *words[1:])
            else:
                told = await self.run(block.machine, line)
                assert told.code == 0, f"{line}\n{told.out}{told.err}\n{self.words()}"

    def _bring(self, machine: str, source: str, target: str) -> None:
        to, _, path = target.partition(":")
        there = Path(self.here(path, to))
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(self.here(source, machine), there)

    async def run(self, machine: str, line: str) -> Told:
        """Return what a `leaseway` command of the page said on a machine."""
        words = shlex.split(self.here(line, machine))
        assert words[0] == "leaseway", line
        process = await asyncio.create_subprocess_exec(
            *leaseway(*words[1:]),
            cwd=ROOT,
            env=self._environment(machine),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), START_S)
        return Told(process.returncode or 0, out.decode(), err.decode())

    async def _keep(self, machine: str, words: list[str]) -> None:
        words = [self.here(word, machine) for word in words]
        name = words[1] if words[0] == "leaseway" else words[0]
        command = leaseway(*words[1:]) if words[0] == "leaseway" else (str(find_binary()), *words[1:])
        log = self.root / f"{machine}-{name}.log"
        with log.open("ab") as out:
            self.running[f"{machine}:{name}"] = await asyncio.create_subprocess_exec(
                *command,
                cwd=ROOT,
                env=self._environment(machine),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def _environment(self, machine: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LEASEWAY_", "CLICKHOUSE_"))}
        config = self.here("/etc/leaseway/leaseway.toml", machine)
        data = f"{self.root}/{machine}/share"  # of what the page gives no directory
        return {**kept, "LEASEWAY_CONFIG": config, "XDG_DATA_HOME": data, "PYTHONPATH": str(ROOT)}

    async def all_ready(self) -> None:
        """Return once everything that was started answers."""
        for name in self.running:
            machine, _, kind = name.partition(":")
            await until(f"{name} to be ready", partial(self._ready, machine, kind), timeout_s=START_S)

    async def _ready(self, machine: str, kind: str) -> bool:
        process = self.running[f"{machine}:{kind}"]
        assert process.returncode is None, f"{machine}:{kind} ended with {process.returncode}\n{self.words()}"
        if kind == "nats-server":
            return await listening_at(self.address(machine), 4222)
        status, said = await self.health(machine, kind)
        return status == 200 and said.get("status") not in {"starting", "degraded"}

    def address(self, machine: str) -> str:
        """Return the address of a machine."""
        return self.url({"a": "10.0.0.11", "b": "10.0.0.12", "c": "10.0.0.13"}[machine])

    async def health(self, machine: str, kind: str) -> tuple[int, dict[str, Any]]:
        """Return (status, body) of a process' health; (0, {}) if it does not answer."""
        url = f"http://{self.address(machine)}:{_PORTS[kind]}/health"
        try:
            async with self.http.get(url, timeout=aiohttp.ClientTimeout(5)) as answer:
                return answer.status, json.loads(await answer.read())
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return 0, {}

    async def kill(self, name: str) -> None:
        """End a process with kill -9."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        await process.wait()

    def words(self) -> str:
        """Return the last lines of every log."""
        tails = (
            (path, path.read_text(errors="replace").splitlines()[-12:]) for path in sorted(self.root.glob("*.log"))
        )
        return "\n".join("\n".join([f"-- {path.name}", *tail]) for path, tail in tails)

    async def stop(self) -> None:
        """Stop everything, services before servers."""
        for name in sorted(self.running, key=lambda each: each.endswith("nats-server")):
            process = self.running[name]
            if process.returncode is None:
                process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), 20)
                except TimeoutError:
                    process.kill()
                    await process.wait()


async def listening_at(host: str, port: int) -> bool:
    """Tell whether something accepts connections there."""
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


@contextlib.asynccontextmanager
async def machines(root: Path, engines: dict[str, str]) -> AsyncIterator[Machines]:
    """Give machines for as long as the block runs; nothing runs on them yet."""
    async with aiohttp.ClientSession() as client:
        made = Machines(root, engines)
        made.http = client
        try:
            yield made
        except BaseException as error:
            error.add_note(made.words())
            raise
        finally:
            await made.stop()
