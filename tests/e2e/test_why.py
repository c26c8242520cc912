"""`leaseway why` and `leaseway at` on real processes: a burst that finds no room, and one that is lent."""

import asyncio
import re
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

from domain.master.reasons import REASONS
from projections.why.cluster import ClusterAt
from services.cli.main import main
from services.past.questions import STORIES
from services.texts.at import lines_of as lines_of_state
from services.texts.why import WIDTH, lines_of
from tests.support.burst import Ask, Outcome, burst
from tests.support.judge import bad_outcomes
from tests.support.processes import Cluster, Node, Told, cluster
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
OWNER, HELPER, TINY = "studio", "attic", "barn"
SERVICE_US, HELPER_US = 400_000, 150_000


@pytest.fixture
def nodes() -> list[Node]:
    """An owner, a quicker helper, and one whose window holds next to nothing; their engines take a stated time."""
    return [
        Node(id=OWNER, stub=True, first_byte_us=SERVICE_US),
        Node(id=HELPER, stub=True, first_byte_us=HELPER_US),
        Node(id=TINY, stub=True, first_byte_us=HELPER_US, ctx=8),
    ]


async def test_a_story_is_told_of_every_kind_of_question(tmp_path: Path, nodes: list[Node]):
    async with cluster(tmp_path, nodes) as running:
        await measured(running)
        await no_room_is_named(running)
        await running.link(OWNER, HELPER)
        outcomes = await burst(running.endpoints.gateway, asks(running, "lent", 8))
        assert not list(bad_outcomes(outcomes))
        lent = next(each for each in outcomes if each.headers["leaseway-served-by"] == HELPER)
        story = await a_lent_request_is_explained(running, lent)
        await its_lease_and_commit_are_explained(running, story)
        await the_state_then_is_shown(running, story)
        await without_the_projector_nats_is_asked(running, lent, story)


def asks(running: Cluster, mark: str, count: int) -> list[Ask]:
    return [Ask(mark=f"{mark}-{at}", model=running.nodes[OWNER].model, tokens=8) for at in range(count)]


async def measured(running: Cluster) -> None:
    """Return once the owner's work has a price."""
    for at in range(3):
        await burst(running.endpoints.gateway, asks(running, f"warm{at}", 1))


async def cli(running: Cluster, *arguments: str) -> Told:
    """Return what a command says, run in this process: an interpreter's start each would take most of the time."""

    def run() -> Told:
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main([*arguments, "--data", str(running.data)])
        return Told(code, out.getvalue(), err.getvalue())

    return await asyncio.to_thread(run)


async def why(running: Cluster, *arguments: str) -> dict[str, Any]:
    told = await cli(running, "why", *arguments)
    assert told.code == 0, told.err
    return told.rows[0]


def text_of(row: dict[str, Any]) -> str:
    """Return a story as a person sees it; no line is wider than a terminal."""
    lines = list(lines_of(msgspec.convert(row, STORIES[row["kind"]])))
    print("\n".join(lines))
    assert max(map(len, lines)) <= WIDTH + 10, max(lines, key=len)
    return "\n".join(lines)


async def no_room_is_named(running: Cluster) -> None:
    """While requests are held whose only link leads to a window that is too small, the first line says so."""
    model = f"{OWNER}/{running.nodes[OWNER].model}"
    unlinked = await why(running, model)
    assert (unlinked["code"], unlinked["held"]) == ("not_linked", 0)
    await running.link(OWNER, TINY)
    sending = asyncio.ensure_future(burst(running.endpoints.gateway, asks(running, "home", 14)))

    async def refused() -> dict[str, Any]:
        row = await why(running, model)
        # the state is told from facts, a plan from a commit, which comes a moment after them
        return row if row["code"] == "context_too_small" and row["last_plan"] else {}

    row: dict[str, Any] = await until("a verdict about what is held, and a stored plan", refused)
    text = text_of(row)
    assert f"{TINY} gets nothing, context_too_small: {REASONS['context_too_small'].rstrip('.')}" in text.replace(
        "\n  ", " "
    )
    assert (row["helpers"][0]["helper"], row["last_plan"]["candidates"][0]["code"]) == (TINY, "context_too_small")
    assert not list(bad_outcomes(await sending))


async def a_lent_request_is_explained(running: Cluster, lent: Outcome) -> dict[str, Any]:
    """The story names helper, lease and reason, and holds what was predicted against what was measured."""

    async def whole() -> dict[str, Any]:
        told = await cli(running, "why", lent.request)
        row = told.rows[0] if told.rows else {}
        rests = row.get("state") == "finished" and row["lease"] and row["source"] == "ClickHouse"
        return row if rests and "accepted" in {each["what"] for each in row["moments"]} else {}

    row: dict[str, Any] = await until("the whole story in ClickHouse", whole, timeout_s=30)
    assert (row["source"], row["helper"]) == ("ClickHouse", HELPER)
    assert row["reason"] in {"pays", "probe"}, "on a slow machine the first of a burst is lent to learn"
    assert {"held", "lent", "accepted", "started", "answered", "finished"} <= {each["what"] for each in row["moments"]}
    compared = row["compared"]
    assert HELPER_US <= compared["measured_job_us"] <= compared["measured_finish_us"]
    assert compared["job_us"] > 0
    assert compared["home_finish_us"] >= SERVICE_US
    assert HELPER_US <= compared["measured_finish_us"] <= lent.ended_us - lent.began_us, (
        "the client waited for all of it"
    )
    text = text_of(row)
    assert f"lent to {HELPER} under lease {row['lease']['lease']}" in text
    assert re.search(r"predicted +measured", text)
    assert {each["helper"] for plan in row["plans"] for each in plan["candidates"]} == {HELPER, TINY}
    return row


async def its_lease_and_commit_are_explained(running: Cluster, story: dict[str, Any]) -> None:
    async def whole() -> dict[str, Any]:
        row = await why(running, story["lease"]["lease"])
        over = row["gain"]["measured_over"] and row["state"] == "cleared"
        return row if over and all(each["outcome"] for each in row["requests"]) else {}

    lease: dict[str, Any] = await until("all ends in ClickHouse", whole, timeout_s=30)
    text_of(lease)
    assert story["request"] in {each["request"] for each in lease["requests"]}
    assert (lease["gain"]["gain_us"] > 0) == (story["reason"] == "pays")
    assert lease["gain"]["measured_over"] == lease["plan"]["held"]
    assert {each["outcome"] for each in lease["requests"]} == {"answered"}
    commit = await why(running, str(lease["version"]))
    text_of(commit)
    assert lease["lease"] in {turn["lease"] for turn in commit["leases"]}
    assert sum(commit["inputs"].values()) == commit["hi"] - commit["lo"] + commit["chi"] - commit["clo"]
    assert (await cli(running, "why", "nonsense")).code == 2
    for what, said in (
        (f"nope/{running.nodes[OWNER].model}", f"no node nope ever registered (known: {HELPER}, {TINY}, {OWNER})"),
        (f"{OWNER}/nope", f"{OWNER} serves no model nope (it serves {running.nodes[OWNER].model})"),
        ("999999", "commit 999999: is not kept"),
    ):
        told = await cli(running, "why", what)
        assert (told.code, told.out, said in told.err) == (2, "", True), told.err
    unknown = await cli(running, "why", "req_" + "0" * 32)
    assert unknown.code == 2
    assert "NATS was asked; its LW_EVENTS begins at 1" in unknown.err
    assert "ClickHouse was asked" in unknown.err


async def the_state_then_is_shown(running: Cluster, story: dict[str, Any]) -> None:
    """Of the lease's commit, by the command and over HTTP, on the bus and on an exported copy, the state is the same."""
    version = str(story["lease"]["version"])
    told = await cli(running, "at", version)
    assert told.code == 0, told.err
    row = told.rows[0]
    assert story["lease"]["lease"] in {lease["lease"] for lease in row["leases"]}
    text = "\n".join(lines_of_state(msgspec.convert(row, ClusterAt)))
    print(text)
    assert f"version {version} of" in text
    _, over_http = await running.get(f"{running.endpoints.projector}/admin/v1/at?version={version}")
    assert isinstance(over_http, dict)
    assert without_head(over_http) == without_head(row)
    copy = str(running.directory / "history.leaseway")
    assert (await cli(running, "audit", "export", copy)).code == 0
    copied = await cli(running, "at", version, "--copy", copy)
    assert copied.code == 0, copied.err
    assert without_head(copied.rows[0]) == without_head(row)
    assert (row["source"], copied.rows[0]["source"]) == ("NATS", "a copy")
    narrow = (await cli(running, "at", "now", HELPER)).rows[0]
    assert [node["node"] for node in narrow["nodes"]] == [HELPER]
    assert (await cli(running, "at", "10000000")).code == 2


def without_head(row: dict[str, Any]) -> dict[str, Any]:
    """Return what is told, without where it was read and how far that reaches."""
    return {name: value for name, value in row.items() if name not in {"head", "source"}}


async def without_the_projector_nats_is_asked(running: Cluster, lent: Outcome, story: dict[str, Any]) -> None:
    """What ClickHouse told, the streams tell as well."""
    running.kill("projector")  # it takes seconds until it is back
    told = await cli(running, "why", lent.request)
    assert told.code == 0, told.err
    row = told.rows[0]
    assert row["source"] == "NATS"
    assert "read from NATS instead" in told.err
    assert {name: row[name] for name in ("lease", "moments", "waits", "plans", "compared", "headline")} == {
        name: story[name] for name in ("lease", "moments", "waits", "plans", "compared", "headline")
    }
