"""Spans: off unless a collector is named; what goes wrong is said by its code, never by its words; headers carry the trace."""

import asyncio
import sys

import pytest

from adapters.http.errors import ApiError
from domain.errors import BadConfigError
from services.config import Config, TelemetryConfig
from services.telemetry import tracing as tracing_module
from services.telemetry.tracing import OFF, Tracing, tracing_of
from tests.support.collector import Collector, Seen, collector, end_sending

CLIENT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"}
TRACE = CLIENT["traceparent"].split("-")[1]


def config(url: str) -> Config:
    return Config(telemetry=TelemetryConfig(otlp_url=url))


def test_nothing_is_traced_where_nobody_names_a_collector():
    assert tracing_of(Config(), "node", "n1", {}) is OFF


@pytest.mark.parametrize("said", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_opentelemetry_s_own_switches_turn_tracing_off(said):
    assert tracing_of(config("http://127.0.0.1:4318"), "node", "n1", said) is OFF


def test_off_a_client_s_trace_goes_on_as_it_came():
    with OFF.span("node.request", within=CLIENT) as span:
        assert span.headers(CLIENT) is CLIENT


@pytest.mark.parametrize("module", ["opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter"])
def test_a_collector_without_the_extra_is_refused_with_its_name(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadConfigError, match=r"otlp_url: the extra `leaseway\[tracing\]` must be installed"):
        tracing_of(config("http://127.0.0.1:4318"), "node", "n1", {})
    # the environment may be every container's: then it is no reason not to serve
    assert tracing_of(Config(), "node", "n1", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}) is OFF


async def spans_of(work) -> tuple[list[Seen], bytes]:
    async with collector() as got:
        tracing = tracing_of(config(got.url), "node", "n1", {})
        assert isinstance(tracing, Tracing)
        await work(tracing, got)
        await tracing.close()
        return got.spans, got.raw


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ApiError("model_unavailable", "what the client wrote"), "model_unavailable"),
        (ValueError("what the client wrote"), "ValueError"),
        (asyncio.CancelledError("what the client wrote"), "cancelled"),
    ],
    ids=["api", "fault", "client gone"],
)
async def test_what_goes_wrong_is_in_the_span_by_code_and_without_words(error, code):
    async def work(tracing: Tracing, _: Collector) -> None:
        with pytest.raises(type(error)), tracing.span("node.request", {"leaseway.owner": "n1"}, within={}):
            raise error

    spans, raw = await spans_of(work)
    assert [(span.is_error, span.attributes) for span in spans] == [
        (True, {"leaseway.owner": "n1", "error.type": code})
    ]
    assert b"what the client wrote" not in raw


async def test_what_a_span_gives_on_names_itself_and_the_client_s_trace():
    given: dict[str, str] = {}

    async def work(tracing: Tracing, _: Collector) -> None:
        with tracing.span("node.request", within=CLIENT), tracing.span("engine.generate") as span:
            given.update(span.headers({"x-request-id": "r", **CLIENT}))

    spans, _ = await spans_of(work)
    inner, outer = spans
    assert (outer.parent, inner.parent) == (CLIENT["traceparent"].split("-")[2], outer.id)
    assert {span.trace for span in spans} == {TRACE}
    assert given == {"x-request-id": "r", "traceparent": f"00-{TRACE}-{inner.id}-01", "tracestate": "a=b"}


async def test_a_collector_that_is_away_holds_up_no_end(monkeypatch):
    monkeypatch.setattr(tracing_module, "_FLUSH_S", 0.3)
    tracing = tracing_of(config("http://127.0.0.1:9"), "node", "n1", {})
    with tracing.span("node.request", within={}):
        pass
    async with asyncio.timeout(3):
        await tracing.close()
    await asyncio.to_thread(end_sending, tracing)


async def test_a_trace_that_its_client_does_not_sample_is_not_sent():
    async def work(tracing: Tracing, _: Collector) -> None:
        with tracing.span("node.request", within={"traceparent": CLIENT["traceparent"][:-2] + "00"}) as span:
            assert span.headers({})["traceparent"].startswith(f"00-{TRACE}-")

    spans, _ = await spans_of(work)
    assert spans == []


async def test_what_a_client_says_of_its_trace_is_no_line_of_the_log(caplog: pytest.LogCaptureFixture):
    async def work(tracing: Tracing, _: Collector) -> None:
        for state in ("a=\udcff", "a=" + "secret" * 1000, ",".join(f"k{number}=v" for number in range(60)), "\x00"):
            with tracing.span("node.request", within={**CLIENT, "tracestate": state}) as span:
                assert span.headers({})["traceparent"].startswith(f"00-{TRACE}-")

    spans, _ = await spans_of(work)
    assert len(spans) == 4
    assert [record.getMessage() for record in caplog.records] == []
