"""Spans of a request, sent to an OpenTelemetry collector; where tracing is off, next to nothing.

    with tracing.span("node.lend", {"leaseway.helper": helper}) as span:
        headers = span.headers(headers)        # with the span as `traceparent`
        ...
        span.set("http.response.status_code", 200)

A span lies in the one around it, or with `within=<headers>` in what these name. It knows its kind and what it may say from the
table; what goes wrong is said by code or by the exception's name, since messages may quote what clients sent.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Protocol

from adapters.http.errors import ApiError
from adapters.http.relay import ClientAnswer
from domain.errors import BadConfigError
from services.config import Config
from services.telemetry.answer import installed_version
from services.telemetry.table import SPANS_BY_NAME, Process

Attributes = Mapping[str, str | int]
_LOG: Final = logging.getLogger("leaseway.telemetry")
_CARRIED: Final = ("traceparent", "tracestate")
_STANDARD: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NOTHING: Final[Attributes] = {}
_FLUSH_S: Final = 3.0
_OF_CLIENTS: Final = "opentelemetry.trace.span"
"""The SDK's logger that quotes what is wrong with a `tracestate`: as many lines, and as long ones, as a client likes."""


class Span(Protocol):
    """One span while it is open."""

    def set(self, name: str, value: str | int) -> None:
        """Say an attribute of the table; 0 and the empty text are left out."""
        ...

    def fail(self, code: str) -> None:
        """Say that it went wrong, and how."""
        ...

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return `headers` with this span as the one that what they go with lies in."""
        ...


class _NoSpan:
    def set(self, name: str, value: str | int) -> None:
        """Say nothing."""

    def fail(self, code: str) -> None:
        """Say nothing."""

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return `headers`: what a client sent goes on as it is."""
        return headers


class Tracing:
    """Makes spans; this one makes none."""

    _NONE: Final = nullcontext(_NoSpan())

    def span(
        self, name: str, attributes: Attributes = _NOTHING, *, within: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Span]:
        """Return a span to be entered."""
        del name, attributes, within
        return self._NONE

    async def close(self) -> None:
        """Send what has not been sent."""


OFF: Final = Tracing()


class _OpenSpan:
    def __init__(self, span: Any, inject: Callable[[dict[str, str]], None]) -> None:
        self._span, self._inject = span, inject

    def set(self, name: str, value: str | int) -> None:
        if value:
            self._span.set_attribute(name, value)

    def fail(self, code: str) -> None:
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415  # an extra: see `tracing_of`

        self._span.set_attribute("error.type", code)
        self._span.set_status(Status(StatusCode.ERROR, code))

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        carried = {name: value for name, value in headers.items() if name.lower() not in _CARRIED}
        self._inject(carried)
        return carried


class _Exporting(Tracing):
    def __init__(self, process: Process, name: str, version: str, url: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.trace import SpanKind  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        logging.getLogger(_OF_CLIENTS).setLevel(logging.ERROR)
        told = {"service.name": f"leaseway-{process}", "service.instance.id": name, "service.version": version}
        # its own provider: the process' global one stays as it is; the sampler is the SDK's, by OTEL_TRACES_SAMPLER
        self._provider = TracerProvider(resource=Resource.create(told), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces") if url else OTLPSpanExporter()
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("leaseway", version)
        self._propagator = TraceContextTextMapPropagator()
        self._inner, self._outer = SpanKind.INTERNAL, SpanKind.SERVER

    def span(
        self, name: str, attributes: Attributes = _NOTHING, *, within: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Span]:
        """Return a span to be entered."""
        assert name in SPANS_BY_NAME, f"span {name}: is not in the table"
        return self._entered(name, attributes, within)

    @contextmanager
    def _entered(self, name: str, attributes: Attributes, within: Mapping[str, str] | None) -> Iterator[Span]:
        carrier = {key: within[key] for key in _CARRIED if key in within} if within is not None else None
        context = self._propagator.extract(carrier) if carrier is not None else None
        with self._tracer.start_as_current_span(
            name,
            context=context,
            kind=self._inner if within is None else self._outer,
            attributes={key: value for key, value in attributes.items() if value},
            record_exception=False,
            set_status_on_exception=False,
        ) as made:
            span = _OpenSpan(made, self._propagator.inject)
            try:
                yield span
            except BaseException as error:
                span.fail(_code_of(error))
                raise

    async def close(self) -> None:
        """Send what has not been sent, for a few seconds at most: a collector that is away holds up no end."""
        sending = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        sending.start()
        await asyncio.to_thread(sending.join, _FLUSH_S)
        if sending.is_alive():
            _LOG.warning("spans_not_sent")


def tracing_of(config: Config, process: Process, name: str, environment: Mapping[str, str] = os.environ) -> Tracing:
    """Return what makes the spans of a process: none unless the configuration or OpenTelemetry's environment names a collector.

    Raises:
        BadConfigError: the configuration does, and the SDK is not installed.
    """
    url = config.telemetry.otlp_url
    standard = any(environment.get(variable) for variable in _STANDARD)
    off = (
        environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get("OTEL_TRACES_EXPORTER") == "none"
    )
    if off or not (url or standard):
        return OFF
    try:
        return _Exporting(process, name, installed_version(), url)
    except ImportError as error:
        missing = "the extra `leaseway[tracing]` must be installed for traces"
        if url:
            raise BadConfigError(f"telemetry.otlp_url: {missing}, got {url!r} without it ({error.name})") from None
        _LOG.warning("no_tracing", extra={"why": missing})
        return OFF


def tell_answer(span: Span, client: ClientAnswer) -> None:
    """Say how a client was answered."""
    span.set("http.response.status_code", client.status)
    if client.error is not None:
        span.fail(client.error.code)


def _code_of(error: BaseException) -> str:
    if isinstance(error, ApiError):
        return error.code
    return "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__name__
