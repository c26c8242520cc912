"""An OpenTelemetry collector for a test: takes spans by OTLP over HTTP, in protobuf, and keeps them."""

import contextlib
import gzip
import threading
from collections.abc import AsyncIterator

import msgspec
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from services.telemetry.tracing import Tracing


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One span as it came."""

    service: str
    """leaseway-gateway, leaseway-node, ..."""
    instance: str
    name: str
    trace: str
    id: str
    parent: str
    """Empty if it has none."""
    begin_ns: int
    end_ns: int
    attributes: dict[str, str | int]
    is_error: bool


class Collector:
    """What a collector got."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Seen] = []
        self.raw = b""
        """Every byte of every export, one after the other."""

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.raw += body
        export = ExportTraceServiceRequest()
        export.ParseFromString(body)
        for resource in export.resource_spans:
            told = _attributes(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans += [_seen(told, span) for span in scope.spans]
        return web.Response(body=b"", content_type="application/x-protobuf")


def end_sending(tracing: Tracing) -> None:
    """Wait until nothing of a closed tracing still tries to send: what it says seconds later would be heard in another test."""
    processor = tracing._provider._active_span_processor._span_processors[0]  # type: ignore[attr-defined]
    batches = processor._batch_processor
    batches._shutdown_timeout_exceeded = True
    processor.span_exporter.shutdown()
    closing = [thread for thread in threading.enumerate() if thread.name == "last spans"]
    for thread in (batches._worker_thread, *closing):
        thread.join(10)
        assert not thread.is_alive(), thread.name


@contextlib.asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    """Run a collector while the block runs."""
    got = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", got._take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    got.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield got
    finally:
        await runner.cleanup()


def _seen(told, span) -> Seen:
    return Seen(
        service=str(told.get("service.name", "")),
        instance=str(told.get("service.instance.id", "")),
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        begin_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        is_error=span.status.code == 2,
    )


def _attributes(pairs) -> dict[str, str | int]:
    values = {pair.key: pair.value for pair in pairs}
    return {
        key: value.string_value if value.HasField("string_value") else value.int_value for key, value in values.items()
    }
