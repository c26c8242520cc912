"""From an empty folder to a lease, through the command line alone: `leaseway up`, a link, a burst, the reasons, the audit."""

import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.burst import Ask, Outcome, burst
from tests.support.processes import Cluster, Node, cluster
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
OWNER, HELPER = "studio", "attic"
REQUESTS, SAMPLES, TOKENS = 16, 4, 300


@pytest.fixture
def nodes() -> list[Node]:
    return [Node(id=OWNER), Node(id=HELPER)]


async def test_a_newcomer_gets_from_up_to_a_lease_and_its_reason_by_commands_alone(tmp_path: Path, nodes: list[Node]):
    async with cluster(tmp_path, nodes) as running:
        await looks_well(running)
        alone = await ask(running, "alone")
        assert {outcome.headers["leaseway-served-by"] for outcome in alone} == {OWNER}

        told = await running.cli("settings", "set", f"scheduling_min_samples={SAMPLES}")
        assert told.rows[0]["value"] == SAMPLES, told.err
        await until("the price of the owner's work", lambda: is_priced(running))
        await running.link(OWNER, HELPER)

        lent = await lent_by_a_burst(running)
        await says_why(running, lent)
        await can_be_verified(running, tmp_path / "history.jsonl")


async def looks_well(running: Cluster) -> None:
    """Status, nodes and the list of models say that everything is there."""
    status = await running.cli("status")
    assert status.code == 0, status
    assert {row["process"] for row in status.rows} >= {"gateway", "projector", "master", "nats-server", f"node {OWNER}"}
    told = await running.cli("nodes")
    assert {row["node"]: row["model"] for row in told.rows} == {OWNER: f"{OWNER}-chat", HELPER: f"{HELPER}-chat"}
    status_code, models = await running.get(f"{running.endpoints.gateway}/v1/models")
    assert status_code == 200
    assert {model["id"] for model in models["data"]} == {f"{OWNER}-chat", f"{HELPER}-chat"}


async def ask(running: Cluster, name: str) -> list[Outcome]:
    """Return a burst's outcomes, all of them good and all under the public id of the owner's model."""
    model = running.nodes[OWNER].model
    asks = [Ask(mark=f"{name}-{at}", model=model, tokens=TOKENS) for at in range(REQUESTS)]
    outcomes = await burst(running.endpoints.gateway, asks)
    assert [outcome for outcome in outcomes if not outcome.good] == []
    assert {outcome.models for outcome in outcomes} == {(model,)}
    return outcomes


async def is_priced(running: Cluster) -> bool:
    state = await running.state()
    models = [model for node in state["nodes"] if node["node"] == OWNER for model in node["models"]]
    return bool(models[0]["samples"] >= SAMPLES)


async def lent_by_a_burst(running: Cluster) -> set[str]:
    """Return the requests that a burst had lent."""
    for number in range(3):  # a first burst may end before its lease on a machine that has other work
        outcomes = await ask(running, f"shared{number}")
        lent = {o.headers["leaseway-request"] for o in outcomes if o.headers["leaseway-served-by"] == HELPER}
        if lent:
            return lent
    raise AssertionError(
        "three bursts, and nothing was lent: " + (await running.cli("decisions", "--kind", "plan")).out
    )


async def says_why(running: Cluster, lent: set[str]) -> None:
    """The decision log has the lease with its price, and each lend."""

    async def rows() -> list[dict[str, Any]]:
        told = await running.cli("decisions", "--owner", OWNER, "--helper", HELPER, "--limit", "1000")
        assert told.code == 0, told
        found = {row["request"] for row in told.rows if row["kind"] == "lent"}
        return told.rows if found >= lent else []

    log = await until("every lend in the decision log", rows, timeout_s=20)
    grants = [row for row in log if row["kind"] == "granted"]
    assert grants
    assert all(row["job_us"] > 0 and row["slots"] > 0 and row["reason"] and row["source"] for row in grants)
    assert any(row["kind"] == "plan" and row["outcome"] == "granted" and row["gain_us"] > 0 for row in log)


async def can_be_verified(running: Cluster, copy: Path) -> None:
    """Verify finds nothing, here or in an exported copy; in a copy with one other byte it names the place."""
    told = await running.cli("audit", "verify")
    assert told.code == 0, told
    assert told.out.startswith("audit verify: ")
    assert told.out.endswith(" commits, 0 differences\n")

    assert (await running.cli("audit", "export", str(copy))).code == 0
    assert (await running.cli("audit", "verify", "--copy", str(copy))).code == 0
    with zipfile.ZipFile(copy) as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    name = next(name for name, content in members.items() if name.startswith("LW_EVENTS") and b".held" in content)
    seq = next(msgspec.json.decode(line)["seq"] for line in members[name].splitlines() if b".held" in line)
    with zipfile.ZipFile(copy, "w") as packed:
        for each, content in members.items():
            packed.writestr(each, content.replace(b".held", b".help", 1) if each == name else content)
    told = await running.cli("audit", "verify", "--copy", str(copy))
    assert told.code == 1, told
    assert f"difference at copy: LW_EVENTS {seq}: is not as it was exported" in told.err
