# ruff: noqa: INP001  (a script beside what it makes, not a package)
"""Makes docs/reference/metrics.md from the table of metrics and spans: `python docs/reference/metrics.py [--check]`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from services.telemetry.table import (  # the project's root has to be on the path first
    ATTRIBUTES,
    LABEL_SETS_MAX,
    METRICS,
    ON_BUS,
    PROCESSES,
    REQUEST_S,
    SPANS,
    STEP_S,
    Metric,
    stated_by,
)

HEAD = f"""# Metrics and traces

Each process answers `GET /metrics` where it answers `/health`: a gateway at its port (8000), a node (8100), the projector
(8200), the master (8300), the console (8500). It is for operators: a proxy in front of a gateway should pass on `/v1/` alone.
The text is Prometheus' own, or OpenMetrics if `Accept` asks for it. Besides what is listed here each process states the client
library's `process_*`, `python_gc_*` and `python_info`.

Labels are bounded: models are those of the configuration (a model that no node serves is `unknown`), nodes those that are
enrolled, codes those of [reasons](reasons.md) and of the API. A metric has at most {LABEL_SETS_MAX} sets of labels; what comes
beyond is counted under `other`. No request id, tenant or text of a client is in any of them. Counters begin at 0 with each
process.

[compose/](../../compose/README.md) has a Prometheus that scrapes all of them and a Grafana dashboard. This page is made from
`services/telemetry/table.py`, and so are the instruments.

"""
TITLES = {
    "gateway": "Of a gateway",
    "node": "Of a node",
    "master": "Of a master",
    "projector": "Of the projector",
    "console": "Of the console",
}
TRACES = """
## Traces
With `[telemetry] otlp_url` (or the standard `OTEL_EXPORTER_OTLP_ENDPOINT`) and the extra `leaseway[tracing]` each process sends
spans by OTLP/HTTP; [how](../how-to/observe.md). A client's `traceparent` and `tracestate` are taken on, and go to the helper
with the lend and to the engine, also where tracing is off. No prompt, answer, error message or key is in a span, and no trace
id in an event.

| span | of | lies in | what it is |
|---|---|---|---|
"""
ATTRIBUTES_HEAD = """
| attribute | of spans | meaning |
|---|---|---|
"""


def page() -> str:
    """Return the page."""
    common = [metric for metric in METRICS if metric.by == PROCESSES]
    on_bus = [metric for metric in METRICS if metric.by == ON_BUS]
    parts = [HEAD, "## Of every process\n\n", _table(common), "\n## Of all but the console\n\n", _table(on_bus)]
    told = [*common, *on_bus]
    for process, title in TITLES.items():
        parts += [f"\n## {title}\n\n", _table([metric for metric in stated_by(process) if metric not in told])]
    parts += ["\n## Buckets\n\n", _buckets("request", REQUEST_S), _buckets("step", STEP_S)]
    return "".join(parts) + _traces()


def _table(metrics: list[Metric]) -> str:
    head = "| metric | kind | unit | labels | meaning |\n|---|---|---|---|---|\n"
    return head + "".join(_row(metric) for metric in metrics)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    kind = metric.kind if not metric.buckets else f"histogram ({'request' if metric.buckets is REQUEST_S else 'step'})"
    return f"| `{metric.name}` | {kind} | {metric.unit} | {labels} | {metric.about} |\n"


def _buckets(name: str, bounds: tuple[float, ...]) -> str:
    return f"- {name}, seconds: {', '.join(f'{bound:g}' for bound in bounds)}\n"


def _traces() -> str:
    spans = "".join(
        f"| `{span.name}` | {', '.join(span.by)} | {span.parent or 'what the client sent'} | {span.about} |\n"
        for span in SPANS
    )
    attributes = "".join(
        f"| `{name}` | {', '.join(span.name for span in SPANS if name in span.attributes)} | {about} |\n"
        for name, about in ATTRIBUTES.items()
    )
    return f"{TRACES}{spans}{ATTRIBUTES_HEAD}{attributes}"


def main() -> int:
    """Write the page, or with --check tell whether it is current."""
    path = Path(__file__).with_suffix(".md")
    if "--check" in sys.argv:
        return int(path.read_text() != page())
    path.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
