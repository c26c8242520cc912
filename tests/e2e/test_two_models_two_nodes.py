"""Two llama.cpp nodes with two models each and room for one at a time: a burst on one, and the other one switches for it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.burst import Ask, Outcome, burst
from tests.support.engines import engine_command
from tests.support.processes import Cluster, cluster_of
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(180)]
OWNER, HELPER = "studio", "attic"
WRITER, CODER, TUTOR, DRAFTER = "writer", "coder", "tutor", "drafter"
BURST, TOKENS = 22, 400
LAYERS = {WRITER: 20, CODER: 4, TUTOR: 4, DRAFTER: 19}


def node_table(node: str, *models: str) -> str:
    """Return a node whose models share `gpu0`; the first of them is loaded at the start."""
    tables = ["[[nodes]]", f'id = "{node}"', "depth = 2"]
    for model in models:
        command = engine_command(alias=f"local-{model}", layers=LAYERS[model], ctx=8192, port="{port}")
        tables += ["[[nodes.models]]", f'id = "{model}"', f'local_id = "local-{model}"', 'engine = "llama.cpp"']
        tables += [f"command = {json.dumps(command)}", 'runtime = "gpu0"', "slots = 1", "context = 8192"]
    return "\n".join(tables)


@contextlib.asynccontextmanager
async def two_nodes(directory: Path) -> AsyncIterator[Cluster]:
    settings = "[cluster.settings]\noffload_restore_delay = '4s'\n"
    config = "\n".join((settings, node_table(OWNER, WRITER, CODER), node_table(HELPER, TUTOR, DRAFTER)))
    async with cluster_of(directory, config) as running:
        yield running


async def test_a_helper_switches_for_a_burst_serves_its_own_request_first_and_restores(tmp_path: Path):
    async with two_nodes(tmp_path) as running:
        await learn_prices(running)
        flags = ("--load-if-unloaded", "--restore-after-borrow", "--different-weights")
        await asyncio.gather(
            link(running, f"{OWNER}/{WRITER}", f"{HELPER}/{DRAFTER}", *flags),
            # only so that the helper states every step of its own work, too: nothing may be loaded for it
            link(running, f"{HELPER}/{TUTOR}", f"{OWNER}/{CODER}", "--different-weights"),
        )

        asks = [Ask(mark=f"burst-{at}", model=WRITER, tokens=TOKENS) for at in range(BURST)]
        bursting = asyncio.ensure_future(burst(running.endpoints.gateway, asks))
        await holds(running, DRAFTER, borrowed=True)
        (own,) = await burst(running.endpoints.gateway, [Ask(mark="own", model=TUTOR, tokens=30)])
        outcomes = await bursting
        await holds(running, TUTOR, borrowed=False)

        judge_clients(own, outcomes)
        facts = [fact["event"] for fact in await running.events() if fact["event"]["producer"] == HELPER]
        judge_turns(own, facts)
        judge_ways(facts, (tmp_path / "leaseway.toml").read_text())
        await judge_decisions(running)


async def link(running: Cluster, *words: str) -> None:
    told = await running.cli("links", "add", *words)
    assert told.code == 0, told.err


async def learn_prices(running: Cluster) -> None:
    """Let each node serve the models that matter: what a job takes, and what a switch takes there and back, is measured then."""
    for number, model in enumerate((WRITER, WRITER, DRAFTER, TUTOR)):
        (outcome,) = await burst(running.endpoints.gateway, [Ask(mark=f"first-{number}", model=model, tokens=TOKENS)])
        assert outcome.good, outcome


async def holds(running: Cluster, model: str, *, borrowed: bool) -> None:
    """Return once the helper has `model` loaded, and works for others, or does not."""

    async def does() -> bool:
        _, status = await running.get(f"{running.endpoints.nodes[HELPER]}/cluster/v1/status")
        works = any(request["state"] == "running" for queue in status["queues"] for request in queue["borrowed"])
        return bool(status["runtimes"][0]["resident"] == model and works == borrowed)

    await until(f"{model} at {HELPER}, {borrowed=}", does, timeout_s=40)


def judge_clients(own: Outcome, outcomes: list[Outcome]) -> None:
    """Every client has its answer under the model it asked for; the helper had a good part of the burst."""
    assert [outcome for outcome in (own, *outcomes) if not outcome.good] == []
    assert {outcome.models for outcome in outcomes} == {(WRITER,)}
    served = [outcome.headers["leaseway-served-by"] for outcome in outcomes]
    assert served.count(HELPER) >= BURST // 5, served
    assert own.headers["leaseway-served-by"] == HELPER


def judge_turns(own: Outcome, facts: list[dict[str, Any]]) -> None:
    """The helper's own facts: switch for borrowed work, own request first, and back when all is quiet."""
    story = [(fact["type"], fact["data"]) for fact in facts]
    first = next(at for at, (kind, _) in enumerate(story) if kind == "borrow.accepted")
    turns = [(data["model"], data["cause"]) for kind, data in story[first:] if kind == "model.loaded"]
    assert turns[0] == (DRAFTER, "borrowed")
    assert (TUTOR, "own") in turns
    assert turns[-1] == (TUTOR, "restore")

    came = next(
        at for at, (kind, data) in enumerate(story) if kind == "queue.held" and data["model"] == TUTOR and at > first
    )
    began = next(at for at, (kind, data) in enumerate(story) if kind == "queue.started" and at > came)
    assert story[began][1]["request"] == own.request
    assert [kind for kind, _ in story[came:began] if kind == "borrow.started"] == []
    assert "status.not_accepting" in [kind for kind, _ in story[came:began]]
    assert "borrow.started" in [kind for kind, _ in story[began:]], "it helped again afterwards"


def judge_ways(facts: list[dict[str, Any]], config: str) -> None:
    """A helper on the owner's own machine is reached over loopback, and nobody had to state a public URL for it."""
    assert "public_url" not in config
    (registered,) = [fact["data"] for fact in facts if fact["type"] == "status.registered"]
    assert registered["url"].startswith("http://127.0.0.1:")


async def judge_decisions(running: Cluster) -> None:
    """The decision log has the lease with its switch, the lends, and the loads."""

    async def rows() -> list[dict[str, Any]]:
        told = await running.cli("decisions", "--owner", OWNER, "--helper", HELPER, "--limit", "1000")
        assert told.code == 0, told
        plans = [row for row in told.rows if row["kind"] == "plan" and row["outcome"] == "granted"]
        return [row for row in plans if row["switch_us"] > 0]

    granted = await until("a lease that pays its switch in the decision log", rows, timeout_s=20)
    assert granted[0]["gain_us"] > 0
