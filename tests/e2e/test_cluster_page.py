"""The page on clusters, followed to the letter: three machines, and one of each thing lost while they lend."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from adapters.nats.enrolment import ensure_core_members
from adapters.nats.server import find_binary
from services.config_file import load_config, with_node
from tests.support.machines import Machines, machines
from tests.support.pages import File, blocks
from tests.support.processes import ROOT
from tests.support.stub import stub_engine
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

PAGE = ROOT / "docs" / "how-to" / "cluster.md"
OWNER, HELPER = "studio", "attic"
FILES = [block for block in blocks(PAGE) if isinstance(block, File)]


@pytest.fixture
def nowhere(tmp_path: Path) -> Machines:
    """Machines on which nothing runs."""
    return Machines(tmp_path, {})


@pytest.mark.parametrize("file", [file for file in FILES if file.path.endswith(".toml")], ids=lambda file: file.machine)
def test_each_machine_s_file_is_one_that_leaseway_takes(nowhere: Machines, tmp_path: Path, file: File):
    path = tmp_path / "leaseway.toml"
    path.write_text(nowhere.here(file.text, file.machine))
    config = load_config(path, data=tmp_path / "data", environment={})
    assert len(config.bus.url.split(",")) == 3
    if file.machine != "a":
        assert with_node(config, "").node.models


@pytest.mark.parametrize("file", [file for file in FILES if file.path.endswith(".conf")], ids=lambda file: file.machine)
def test_each_server_s_file_is_one_that_nats_takes(nowhere: Machines, tmp_path: Path, file: File):
    ensure_core_members(tmp_path, "lab")
    path = tmp_path / "nats" / "nats.conf"
    path.write_text(nowhere.here(file.text, file.machine))
    check = subprocess.run([find_binary(), "-t", "-c", path], capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stderr


async def ask(at: Machines, count: int = 10) -> list[tuple[int, str]]:
    """Return (status, who served it) of requests that come at the gateway all at once."""
    body = {"model": "chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}

    async def one() -> tuple[int, str]:
        async with at.http.post(at.url("http://10.0.0.11:8000/v1/chat/completions"), json=body) as answer:
            await answer.read()
            return answer.status, answer.headers.get("leaseway-served-by", "")

    return list(await asyncio.gather(*(one() for _ in range(count))))


async def lends(at: Machines) -> None:
    """Return once the helper has served a request of a burst; every one of them is answered meanwhile."""

    async def lent() -> bool:
        outcomes = await ask(at)
        assert {status for status, _ in outcomes} == {200}, outcomes
        return HELPER in {by for _, by in outcomes}

    await until("a lent request", lent, timeout_s=60)


async def masters(at: Machines) -> dict[str, dict[str, Any]]:
    found = {machine: (await at.health(machine, "master"))[1] for machine in ("a", "b")}
    return {machine: said for machine, said in found.items() if said}


async def active(at: Machines) -> str:
    """Return the machine of the master that decides; empty if none does."""
    return next((machine for machine, said in (await masters(at)).items() if said["status"] == "active"), "")


@pytest.mark.long
async def test_the_page_s_cluster_lends_over_the_loss_of_its_master_and_of_a_server(tmp_path: Path):
    async with (
        stub_engine(model="qwen3", first_byte_us=150_000) as slow,
        stub_engine(model="chat-attic", first_byte_us=20_000) as quick,
        machines(tmp_path, {"b": slow.url, "c": quick.url}) as at,
    ):
        await at.follow(PAGE)
        await lends(at)

        status = await at.run("a", "leaseway status --data /var/lib/leaseway/admin --json")
        assert status.code == 0, status.out
        rows = [(row["process"], row["state"]) for row in status.rows if "state" in row]
        assert sorted(rows) == [
            ("console", "ok"), ("gateway", "ok"), ("master", "active"), ("master", "standby"), ("nats-server", "ok"),
            ("nats-server", "ok"), ("nats-server", "ok"), ("node attic", "ok"), ("node studio", "ok"), ("projector", "ok"),
        ]  # fmt: skip

        rows_of_plans = await at.run("a", "leaseway decisions --data /var/lib/leaseway/admin --json")
        assert {row["owner"] for row in rows_of_plans.rows} == {OWNER}, rows_of_plans.err

        first = await active(at)
        await at.kill(f"{first}:master")
        await lends(at)  # by leases that are out
        second: str = await until("the other master to decide", lambda: active(at), timeout_s=30)
        assert second != first
        term = (await masters(at))[second]["term"]
        assert term >= 2
        version = (await masters(at))[second]["version"]
        await lends(at)

        await at.kill("c:nats-server")
        for _ in range(3):
            assert {status for status, _ in await ask(at, 6)} == {200}
        await lends(at)

        async def decided() -> bool:
            return bool((await masters(at))[second]["version"] > version)

        await until("a decision without the third server", decided, timeout_s=30)
        told = await at.run("a", "leaseway nodes --data /var/lib/leaseway/admin --json")
        assert {row["node"] for row in told.rows} == {OWNER, HELPER, "loft"}
        audit = await at.run("a", "leaseway audit verify --data /var/lib/leaseway/admin --json")
        assert audit.code == 0, audit.out + audit.err
