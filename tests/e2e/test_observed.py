"""What operators see of a running cluster: every metric of the table on every process, and one trace of a lent request."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from services.telemetry.table import ATTRIBUTES, BY_NAME, SPANS_BY_NAME, Process, stated_by
from tests.support import processes
from tests.support.collector import Collector, Seen, collector
from tests.support.processes import Cluster, Node, cluster
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

OWNER, HELPER, TRACE, OUTSIDE = "studio", "attic", "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
NODES = [Node(id=OWNER, stub=True, first_byte_us=120_000), Node(id=HELPER, stub=True, first_byte_us=20_000)]
SECRET = "the-client-s-own-words"
HEADERS = {"traceparent": f"00-{TRACE}-{OUTSIDE}-01", "tracestate": "vendor=value"}


async def burst(running: Cluster, count: int = 10) -> list[tuple[int, str, str]]:
    """Return (status, who served it, the request's id) of requests that come all at once, in the trace of one client."""
    body = {"model": f"{OWNER}-chat", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 8}

    async def ask() -> tuple[int, str, str]:
        url = f"{running.endpoints.gateway}/v1/chat/completions"
        async with running.http.post(url, json=body, headers=HEADERS) as answer:
            await answer.read()
            return answer.status, answer.headers["leaseway-served-by"], answer.headers["leaseway-request"]

    return list(await asyncio.gather(*(ask() for _ in range(count))))


async def lent_one(running: Cluster) -> str:
    """Return the id of a request that the helper served."""
    await running.link(OWNER, HELPER)

    async def lent() -> str:
        outcomes = await burst(running)
        assert {status for status, _, _ in outcomes} == {200}
        return next((request for _, by, request in outcomes if by == HELPER), "")

    found: str = await until("a lent request", lent, timeout_s=30)
    return found


async def metrics_of(client: aiohttp.ClientSession, url: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Return metric -> {sorted label values: value} of what a process shows, the names as the table has them."""
    async with client.get(f"{url}/metrics") as answer:
        assert answer.status == 200
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in families(await answer.text()):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found[name] = {
                tuple(value for _, value in sorted(sample.labels.items())): sample.value
                for sample in family.samples
                if not sample.name.endswith(("_bucket", "_sum"))
            }
        return found


async def shows_the_table(running: Cluster) -> None:
    at = running.endpoints
    urls: dict[Process, str] = {
        "gateway": at.gateway,
        "node": at.nodes[OWNER],
        "master": at.master,
        "projector": at.projector,
    }
    for process, url in urls.items():
        shown = await metrics_of(running.http, url)
        ours = {name for name in shown if name.startswith("leaseway_")}
        assert ours == {metric.name for metric in stated_by(process)}, process
        assert shown["process_cpu_seconds_total"][()] > 0
        for name in ours:
            assert all(len(labels) == len(BY_NAME[name].labels) for labels in shown[name]), name


async def shows_the_lend(running: Cluster) -> None:
    owner = await metrics_of(running.http, running.endpoints.nodes[OWNER])
    helper = await metrics_of(running.http, running.endpoints.nodes[HELPER])
    gateway = await metrics_of(running.http, running.endpoints.gateway)
    model = f"{OWNER}-chat"
    lent = owner["leaseway_lends_total"][HELPER, model]
    assert lent >= 1
    assert owner["leaseway_lend_ends_total"][HELPER, model, "answered", ""] == lent
    assert helper["leaseway_borrows_total"][f"{HELPER}-chat", "finished", OWNER] == lent
    asked = gateway["leaseway_gateway_requests_total"][model, "ok"]
    assert owner["leaseway_requests_total"]["", model, "finished"] == asked
    assert owner["leaseway_time_to_first_token_seconds"][model,] == asked
    assert owner["leaseway_requests_held"][model,] == owner["leaseway_requests_lent"][model,] == 0
    assert owner["leaseway_engine_up"][model,] == owner["leaseway_bus_connected"][()] == 1
    assert owner["leaseway_publish_seconds"][()] > 0
    master = await metrics_of(running.http, running.endpoints.master)
    assert master["leaseway_master_mode"]["active",] == 1
    assert master["leaseway_commits_total"][()] > 0
    assert master["leaseway_verdicts_total"]["", "granted"] > 0
    assert master["leaseway_plan_seconds"][()] > 0
    assert master["leaseway_node_health"]["healthy", OWNER] == 1


def of_request(got: Collector, request: str) -> list[Seen]:
    return [span for span in got.spans if span.attributes.get("leaseway.request") == request]


def nests(got: Collector, request: str) -> None:
    """The spans of one lent request lie in one another, in the trace of the client, and so do their times."""
    ours = of_request(got, request)
    by_id = {span.id: span for span in got.spans}
    by_name = {span.name: span for span in ours if span.attributes.get("leaseway.next") != "dispatch"}
    outer = by_id[by_name["node.request"].parent]
    assert outer.name == "gateway.request"
    assert outer.parent == OUTSIDE
    assert outer.service == "leaseway-gateway"
    assert by_name["node.held"].parent == by_name["node.lend"].parent == by_name["node.request"].id
    assert by_name["helper.serve"].parent == by_name["node.lend"].id
    assert by_name["engine.generate"].parent == by_name["helper.serve"].id
    assert {span.trace for span in (outer, *ours)} == {TRACE}
    assert {by_name[name].instance for name in ("helper.serve", "engine.generate")} == {HELPER}
    assert {by_name[name].instance for name in ("node.request", "node.held", "node.lend")} == {OWNER}
    for inner in ours:
        around = by_id[inner.parent]
        assert around.begin_ns <= inner.begin_ns, inner.name
        # a helper sees the last byte leave before its owner has read it, or just after
        assert inner.end_ns <= around.end_ns + 50_000_000, inner.name
    assert by_name["node.held"].attributes["leaseway.next"] == "lend"
    assert by_name["node.lend"].attributes["leaseway.outcome"] == "answered"
    assert by_name["node.lend"].attributes["leaseway.helper"] == HELPER
    assert outer.attributes["leaseway.node"] == OWNER


async def test_operators_see_every_metric_and_one_trace_of_a_lent_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(processes._ENVIRONMENT, "OTEL_BSP_SCHEDULE_DELAY", "100")
    async with collector() as got:
        async with cluster(tmp_path, NODES, config=f'[telemetry]\notlp_url = "{got.url}"') as running:
            request = await lent_one(running)
            await shows_the_table(running)
            await shows_the_lend(running)
            await until("the trace's spans", lambda: {"node.request", "helper.serve"} <= names(got, request))
        nests(got, request)
        assert {span.name for span in got.spans} == set(SPANS_BY_NAME)
        for span in got.spans:
            assert set(span.attributes) <= set(SPANS_BY_NAME[span.name].attributes), span.name
        assert set(ATTRIBUTES) >= {name for span in got.spans for name in span.attributes}
        assert SECRET.encode() not in got.raw


def names(got: Collector, request: str) -> set[str]:
    return {span.name for span in of_request(got, request)}
