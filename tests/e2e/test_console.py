"""The console of a real cluster: what it shows of a lent burst, of processes that are gone, and of history that is in doubt."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from projections.why.cluster import ClusterAt
from services.past.questions import STORIES
from services.telemetry.table import stated_by
from services.texts import at as state_texts
from services.texts import why as why_texts
from services.texts.plain import cell
from services.texts.sentences import said as sentence_of
from services.texts.telemetry import QUESTIONS, table_of, window_of
from tests.support.burst import Ask, Outcome, burst
from tests.support.console_pages import Seen, look
from tests.support.judge import bad_outcomes
from tests.support.processes import Cluster, Node, cluster
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
OWNER, HELPER = "studio", "attic"
NODES = [
    Node(id=OWNER, stub=True, first_byte_us=300_000),
    Node(id=HELPER, stub=True, first_byte_us=100_000),
]
PAGES = ("/", "/decisions", "/why", "/at", "/telemetry", f"/why?of={OWNER}/{OWNER}-chat", "/decisions?kind=nope")


async def test_the_console_shows_a_burst_and_explains_it_and_says_what_is_gone_and_that_history_is_in_doubt(
    tmp_path: Path,
):
    async with cluster(tmp_path, NODES) as running:
        outcomes = await a_burst_is_seen_while_it_runs(running)
        await the_state_is_the_masters_own(running)
        lent = next(each for each in outcomes if each.headers["leaseway-served-by"] == HELPER)
        story = await every_kind_of_question_is_told_as_the_command_line_tells_it(running, lent)
        await decisions_are_the_projectors_own(running, story)
        await the_state_then_is_shown(running, story)
        await every_question_of_telemetry_has_its_table(running)
        await what_is_not_served_is_said_in_the_form_of_every_process(running)
        await it_is_well_and_counts_its_pages(running)
        async with not_restarted(running):
            await without_the_projector_the_rest_is_shown(running)
            await without_the_master_the_rest_is_shown(running)
            cut_off_the_end_of_the_ledger(running)
        await every_page_says_safe_mode_first(running)
        await it_goes_away_by_the_operators_command(running)


async def page(running: Cluster, path: str, **query: Any) -> Seen:
    return await look(running.http, running.endpoints.console + path, **query)


async def told(running: Cluster, path: str) -> Any:
    """Return what the projector itself answers."""
    status, body = await running.get(running.endpoints.projector + path)
    assert status == 200, body
    return body


def asks(running: Cluster, mark: str, count: int) -> list[Ask]:
    return [Ask(mark=f"{mark}-{number}", model=running.nodes[OWNER].model, tokens=8) for number in range(count)]


async def a_burst_is_seen_while_it_runs(running: Cluster) -> list[Outcome]:
    """The page of the cluster shows what waits, what is lent, under which lease, and that the processes are well."""
    for number in range(3):  # else its work has no price
        await burst(running.endpoints.gateway, asks(running, f"warm{number}", 1))
    await running.link(OWNER, HELPER)
    outcomes: list[Outcome] = []
    shown = asyncio.Event()

    async def send() -> None:
        while not shown.is_set():
            outcomes.extend(await burst(running.endpoints.gateway, asks(running, f"burst{len(outcomes)}", 24)))

    sending = asyncio.create_task(send())

    async def busy() -> Seen | None:
        seen = await page(running, "/")
        owners = [row for row in seen.rows("node") if row["node"] == OWNER]
        leased = [row for row in seen.rows("owner", "helper", "lease") if row["slots"] != "0"]
        return seen if owners and int(owners[0]["held"]) and int(owners[0]["lent"]) and leased else None

    seen: Seen = await until("a page with held and lent requests and a lease", busy, timeout_s=30)
    shown.set()
    assert (seen.status, seen.banners) == (200, [])
    owner, helper = sorted(seen.rows("node"), key=lambda row: row["node"] != OWNER)
    assert (owner["health"], owner["model"], owner["model is"]) == ("healthy", f"{OWNER}-chat", "loaded")
    assert (helper["node"], helper["health"]) == (HELPER, "healthy")
    [lease] = seen.rows("owner", "helper", "lease")
    assert (lease["owner"], lease["helper"]) == (f"{OWNER}/{OWNER}-chat", f"{HELPER}/{HELPER}-chat")
    assert int(lease["out"]) <= int(lease["slots"])
    assert f"/why?of={lease['lease']}" in seen.links()
    processes = {row["process"]: (row["url"], row["state"]) for row in seen.rows("process")}
    at = running.endpoints
    assert processes == {
        "gateway": (at.gateway, "ok"),
        "projector": (at.projector, "ok"),
        "master": (at.master, "active"),
    }
    await sending
    assert not list(bad_outcomes(outcomes))
    return outcomes


async def the_state_is_the_masters_own(running: Cluster) -> None:
    async def same() -> bool:
        before = await running.state()
        status, ours = await running.get(f"{running.endpoints.console}/admin/v1/state")
        assert status == 200
        return bool(ours == before)

    await until("the same state from both", same)


async def every_kind_of_question_is_told_as_the_command_line_tells_it(
    running: Cluster, lent: Outcome
) -> dict[str, Any]:
    """Of a request, its lease, the commit, a decision that granted nothing, and a model."""

    async def ended() -> Any:
        status, story = await running.get(f"{running.endpoints.projector}/admin/v1/why/request/{lent.request}")
        return story if status == 200 and story["state"] == "finished" and story["lease"] else None

    story: dict[str, Any] = await until("the end of a lent request in ClickHouse", ended, timeout_s=30)
    lease, version = story["lease"]["lease"], story["lease"]["version"]
    await same_story(running, "request", lent.request, f"lent to {HELPER} under lease {lease}")
    await same_story(running, "lease", lease, f"lease {lease}: ")
    await same_story(running, "commit", str(version), lease)
    planned = f"{lease.rpartition('-')[0]}-0"  # what a commit decides first is a plan
    assert planned != lease
    await same_story(running, "commit", planned, lease)
    await same_story(running, "model", f"{OWNER}/{OWNER}-chat", f"{OWNER}-chat")
    unknown = await page(running, "/why", of="req_" + "0" * 32)
    assert (unknown.status, [banner.weight for banner in unknown.banners]) == (404, ["notice"])
    shapeless = await page(running, "/why", of="nonsense")
    assert (shapeless.status, "must be a request" in shapeless.banners[0].text) == (400, True)
    return story


async def same_story(running: Cluster, kind: str, name: str, holds: str) -> None:
    """The page shows the projector's own story, in the words of the command line."""

    async def same() -> Seen | None:
        answer = await told(running, f"/admin/v1/why/{kind}/{quote(name)}")
        seen = await page(running, "/why", of=name)
        status, ours = await running.get(f"{running.endpoints.console}/admin/v1/why/{kind}/{quote(name)}")
        assert (seen.status, status) == (200, 200)
        lines = list(why_texts.lines_of(msgspec.convert(answer, STORIES[kind])))
        return seen if ours == answer and seen.lines == lines else None

    seen = await until(f"the story of {kind} {name}", same)
    assert holds in " ".join(seen.lines), seen.lines
    assert (seen.banners, seen.fields()["of"]) == ([], name)


async def decisions_are_the_projectors_own(running: Cluster, story: dict[str, Any]) -> None:
    """Folded and row by row, by each filter; a link leads on from each row."""
    lease = story["lease"]["lease"]
    filters = {
        "owner": OWNER,
        "helper": HELPER,
        "kind": "granted",
        "code": story["reason"],
        "outcome": "granted",
        "request": story["request"],
        "lease": lease,
        "from": "10m",
        "to": "0m",
    }
    folded = await page(running, "/decisions", rows="")
    assert any(" times)" in row["what"] for row in folded.rows("when (UTC)")), "nothing is folded"
    for name, value in filters.items():
        asked = {name: value}
        path = f"/admin/v1/decisions?limit=200&folded=false&{name}={value}"
        answer = await told(running, path)
        status, ours = await running.get(running.endpoints.console + path)
        seen = await page(running, "/decisions", rows="all", **asked)
        assert (status, ours["decisions"], seen.status) == (200, answer["decisions"], 200)
        rows = seen.rows("when (UTC)")
        assert [row["what"] for row in rows] == [sentence_of(row) for row in reversed(answer["decisions"])], name
        assert rows, f"nothing is known by {name}"
        assert (seen.fields() | {"kind": asked.get("kind", "")})[name] == value
    assert {f"/why?of={story['request']}", f"/why?of={lease}"} <= set(
        (await page(running, "/decisions", rows="all", request=story["request"])).links()
    )
    for wrong, why in (
        ({"kind": "nope"}, "kind: must be one of plan, granted"),
        ({"owner": "\0"}, "node id '\\x00': must match"),
        ({"from": "yesterday"}, "from: must be a time"),
    ):
        seen = await page(running, "/decisions", **wrong)
        assert (seen.status, seen.rows("when (UTC)")) == (400, [])
        assert why in seen.banners[0].text


async def the_state_then_is_shown(running: Cluster, story: dict[str, Any]) -> None:
    """Of a version and of a time, as the command line shows it; of a node alone."""
    version = story["lease"]["version"]
    answer = await told(running, f"/admin/v1/at?version={version}")
    ours = (await running.get(f"{running.endpoints.console}/admin/v1/at?version={version}"))[1]
    seen = await page(running, "/at", moment=str(version))
    assert ours | {"head": ""} == answer | {"head": ""}
    assert story["lease"]["lease"] in "".join(seen.lines)
    assert seen.lines[1:] == list(state_texts.lines_of(msgspec.convert(answer, ClusterAt)))[1:]
    narrow = await page(running, "/at", moment="0s", only=HELPER)
    assert (narrow.status, f"  only what concerns {HELPER}" in narrow.lines) == (200, True)
    for moment, status in (("yesterday", 400), ("10000000", 404)):
        assert (await page(running, "/at", moment=moment)).status == status


async def every_question_of_telemetry_has_its_table(running: Cluster) -> None:
    """Over a window that has ended, the page's cells are those of the command line's table."""
    first = await told(running, "/admin/v1/telemetry/requests?from=10m")
    begin, end = window_of(first).split(" to ")
    for question in QUESTIONS:

        async def same(question: str = question) -> list[list[str]]:
            seen = await page(running, "/telemetry", question=question, **{"from": begin, "to": end})
            path = f"/admin/v1/telemetry/{question}?from={quote(begin)}&to={quote(end)}"
            status, answer = await running.get(running.endpoints.console + path)
            assert (seen.status, status, seen.banners) == (200, 200, []), question
            assert question != "savings" or answer == await told(running, path)
            table = table_of(question, answer, whole=False)
            cells = [[cell(key, row[key]) for key in table.columns] for row in table.rows]
            return cells if cells and seen.tables == [[list(table.columns.values()), *cells]] else []

        await until(f"the table of {question}", same)
    unknown = await page(running, "/telemetry", question="profits")
    assert (unknown.status, "must be one of requests, waits" in unknown.banners[0].text) == (400, True)


async def what_is_not_served_is_said_in_the_form_of_every_process(running: Cluster) -> None:
    console = running.endpoints.console
    for method, path, status, code in (
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v1/webhooks", 404, "not_found"),
        ("POST", "/decisions", 405, "method_not_allowed"),
        ("DELETE", "/admin/v1/state", 405, "method_not_allowed"),
    ):
        async with running.http.request(method, console + path) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (status, code), path
            assert answer.headers["leaseway-served-by"] == "console"


async def it_is_well_and_counts_its_pages(running: Cluster) -> None:
    console = running.endpoints.console
    status, body = await running.get(f"{console}/health")
    assert (status, body["status"]) == (200, "ok")
    async with running.http.get(f"{console}/metrics") as answer:
        found = {family.name: family for family in families(await answer.text())}
    ours = {name for name in found if name.startswith("leaseway_")}
    assert {f"{name}_total" if f"{name}_total" in stated_names() else name for name in ours} == stated_names()
    counted = {
        (sample.labels["page"], sample.labels["outcome"]): sample.value
        for sample in found["leaseway_console_pages"].samples
        if sample.name.endswith("_total")
    }
    assert counted["cluster", "ok"] > 0
    assert counted["why", "4xx"] == 2


def stated_names() -> set[str]:
    return {metric.name for metric in stated_by("console")}


@asynccontextmanager
async def not_restarted(running: Cluster) -> AsyncIterator[None]:
    """Have what is killed stay dead for the length of the block."""
    os.kill(running.up.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(running.up.pid, signal.SIGCONT)


async def away(running: Cluster, path: str) -> Seen:
    """Return the page that says that the projector is away, once its answer of the last second is told no more."""

    async def refused() -> Seen | None:
        seen = await page(running, path)
        return seen if seen.status == 503 else None

    seen: Seen = await until(f"{path} without a projector", refused)
    return seen


async def without_the_projector_the_rest_is_shown(running: Cluster) -> None:
    running.kill("projector")

    async def said() -> Seen | None:
        seen = await page(running, "/")
        return seen if seen.banners else None

    seen: Seen = await until("a page that says that the projector is gone", said)
    assert (seen.status, seen.banners[0].weight) == (200, "notice")
    assert f"projector {running.endpoints.projector}: cannot be reached" in seen.banners[0].text
    assert "its rows come later from the streams" in seen.banners[0].text
    assert {row["node"] for row in seen.rows("node")} == {OWNER, HELPER}
    assert {row["process"]: row["state"] for row in seen.rows("process")}["projector"] == "silent"
    for path in ("/decisions", "/at?moment=1m", "/telemetry", "/why?of=1"):
        seen = await away(running, path)
        assert seen.text["h1"]
        assert all("cannot be reached" in banner.text for banner in seen.banners)
    status, body = await running.get(f"{running.endpoints.console}/admin/v1/decisions")
    assert (status, body["error"]["code"]) == (503, "unreachable")


async def without_the_master_the_rest_is_shown(running: Cluster) -> None:
    running.kill("master")

    async def said() -> Seen | None:
        seen = await page(running, "/")
        return seen if seen.banners[0].weight == "alarm" and not seen.rows("node") else None

    seen: Seen = await until("a page that says that the master is gone", said)
    assert (seen.status, seen.rows("node")) == (200, [])
    assert seen.banners[0].text.startswith("No master answers: no new leases; every node serves its own requests.")
    assert running.endpoints.master in seen.banners[0].text
    assert {row["process"]: row["state"] for row in seen.rows("process")}["master"] == "silent"
    status, body = await running.get(f"{running.endpoints.console}/admin/v1/state")
    assert (status, body["error"]["code"]) == (503, "unreachable")


def cut_off_the_end_of_the_ledger(running: Cluster) -> None:
    """Have the newest commits be gone from the disk, as somebody does who does not want them to be known."""
    running.kill("nats-server")
    [ledger] = running.data.glob("nats/store/**/streams/LW_LEDGER/msgs")
    block = max(ledger.glob("*.blk"), key=lambda path: int(path.stem))
    os.truncate(block, block.stat().st_size // 2)


async def every_page_says_safe_mode_first(running: Cluster) -> None:
    """As an alarm, with the doubt that the master states, and with the command that ends it; nothing else is lost."""

    async def said() -> Any:
        _, health = await running.get(f"{running.endpoints.master}/health")
        _, projector = await running.get(f"{running.endpoints.projector}/health")
        well = (projector or {}).get("status") == "ok"
        seen = await page(running, "/")
        doubts = seen.banners and seen.banners[0].text.startswith("SAFE MODE")
        return health if doubts and well and (health or {}).get("status") == "safe_mode" else None

    health = await until("a page that says safe mode", said, timeout_s=30)
    assert "but the data directory has seen version" in health["doubt"]
    for path in PAGES:
        seen = await page(running, path)
        assert seen.order[0] == "alarm", path
        weight, text = seen.banners[0]
        assert (weight, text.startswith("SAFE MODE: nothing is lent")) == ("alarm", True), path
        assert " ".join(health["doubt"].split()) in " ".join(text.split()), path
        assert "leaseway provision --new-generation --reason" in text, path
        assert running.endpoints.master in text, path
        assert seen.status == (400 if "nope" in path else 200), path
    seen = await page(running, "/why", of=f"{OWNER}/{OWNER}-chat")
    assert "safe mode" in seen.lines[0]

    async def told_by_it() -> Seen | None:
        seen = await page(running, "/")
        return seen if "not known to a master that is in safe mode" in " ".join(seen.text["p"].split()) else None

    # what it says of itself and what it has folded were asked at two moments, each within the last second
    seen = await until("the state of a master in safe mode", told_by_it)
    assert {row["process"]: row["state"] for row in seen.rows("process")}["master"] == "safe mode"
    assert "no node is enrolled" not in seen.raw, "it does not know that"


async def it_goes_away_by_the_operators_command(running: Cluster) -> None:
    reason = "the end was cut off, we looked"
    done = await running.cli("provision", "--new-generation", "--reason", reason)
    assert done.code == 0, done.err

    async def calm() -> bool:
        pages = [await page(running, path) for path in PAGES[:5]]
        return not any(seen.banners for seen in pages)

    await until("pages without an alarm", calm, timeout_s=20)

    async def logged() -> list[str]:
        return [row["what"] for row in (await page(running, "/decisions", kind="safe_mode_left")).rows("when (UTC)")]

    assert await until("the end of safe mode in the decision log", logged) == [f"leases again: {reason}"]
