# ruff: noqa: INP001  (a script beside what it makes, not a package)
"""Makes the Grafana dashboard: `python compose/grafana/dashboard.py [--check]`. A test looks each metric up in the table."""

import json
import sys
from pathlib import Path
from typing import Any, Final

MADE: Final = Path(__file__).parent / "dashboards" / "leaseway.json"
SOURCE: Final = {"type": "prometheus", "uid": "leaseway-prometheus"}
WIDTH, HEIGHT = 8, 7
PER_LINE: Final = 24 // WIDTH


def rate(metric: str, by: str) -> str:
    """Return the query of a counter's rate."""
    return f"sum by ({by}) (rate({metric}[$__rate_interval]))"


def quantile(share: float, metric: str, by: str = "") -> str:
    """Return the query of a histogram's quantile."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket[$__rate_interval])))"


def each(metric: str, by: str, how: str = "sum") -> str:
    """Return the query of a gauge."""
    return f"{how} by ({by}) ({metric})"


Panel = tuple[str, str, dict[str, str]]
"""Title, unit, {legend: query}."""

ROWS: Final[dict[str, list[Panel]]] = {
    "Is it well": [
        ("Masters", "short", {"{{mode}}": "sum by (mode) (leaseway_master_mode)"}),
        ("History in doubt", "short", {"safe mode": "max(leaseway_safe_mode)"}),
        ("Connected to the bus", "short", {"{{job}} {{instance}}": "min by (job, instance) (leaseway_bus_connected)"}),
        ("Engines up", "short", {"{{model}} at {{instance}}": each("leaseway_engine_up", "model, instance", "min")}),
        ("Nodes' health", "short", {"{{node}} {{health}}": each("leaseway_node_health", "node, health", "max")}),
        ("Helpers shut out", "short", {
            "{{node}}/{{model}} {{state}}": each("leaseway_breaker_open", "node, model, state", "max"),
        }),
    ],
    "What clients get": [
        ("Requests by outcome", "reqps", {"{{outcome}}": rate("leaseway_gateway_requests_total", "outcome")}),
        (
            "Time to first byte, at the gateway", "s",
            {
                "p50 {{model}}": quantile(0.5, "leaseway_gateway_time_to_first_byte_seconds", "model"),
                "p95 {{model}}": quantile(0.95, "leaseway_gateway_time_to_first_byte_seconds", "model"),
            },
        ),
        ("Time of a request, p95", "s", {"{{model}}": quantile(0.95, "leaseway_gateway_request_seconds", "model")}),
        ("In progress at nodes", "short", {"{{node}}": each("leaseway_gateway_in_progress", "node")}),
        ("Nodes able to serve", "short", {"{{model}}": each("leaseway_gateway_nodes_able", "model", "max")}),
        ("Second tries", "reqps", {"{{node}}": rate("leaseway_gateway_failovers_total", "node")}),
    ],
    "Queues": [
        ("Held", "short", {"{{model}}": each("leaseway_requests_held", "model")}),
        ("Wait before service", "s", {
            "p50 {{model}}": quantile(0.5, "leaseway_request_wait_seconds", "model"),
            "p95 {{model}}": quantile(0.95, "leaseway_request_wait_seconds", "model"),
        }),
        ("In engines", "short", {"{{model}}": each("leaseway_requests_in_engine", "model")}),
        ("Time to first token, at the owner, p95", "s", {
            "{{model}}": quantile(0.95, "leaseway_time_to_first_token_seconds", "model"),
        }),
        ("Service, p50 by who served", "s", {
            "{{model}} {{served_by}}": quantile(0.5, "leaseway_request_service_seconds", "model, served_by"),
        }),
        ("Tokens", "short", {"{{model}} {{direction}}": rate("leaseway_tokens_total", "model, direction")}),
    ],
    "Lending": [
        ("Lent and borrowed now", "short", {
            "lent {{model}}": each("leaseway_requests_lent", "model"),
            "borrowed {{model}}": each("leaseway_requests_borrowed", "model"),
            "kept {{model}}": each("leaseway_requests_kept", "model"),
        }),
        ("Lends", "reqps", {"{{model}} to {{helper}}": rate("leaseway_lends_total", "model, helper")}),
        ("How lends end", "reqps", {"{{outcome}} {{reason}}": rate("leaseway_lend_ends_total", "outcome, reason")}),
        ("Leases and their slots", "short", {
            "leases": "max(leaseway_cluster_leases)",
            "slots": "max(leaseway_cluster_lease_slots)",
            "requests out": "max(leaseway_cluster_requests_out)",
        }),
        ("Verdicts of plans", "ops", {"{{outcome}} {{code}}": rate("leaseway_verdicts_total", "outcome, code")}),
        ("Own work behind borrowed, p95", "s", {"{{model}}": quantile(0.95, "leaseway_native_waited_seconds", "model")}),
        ("Loads", "ops", {"{{model}} {{cause}}": rate("leaseway_loads_total", "model, cause")}),
        ("Time of a load, p50", "s", {"{{model}}": quantile(0.5, "leaseway_load_seconds", "model")}),
        ("Loads that failed", "ops", {"{{model}}": rate("leaseway_load_failures_total", "model")}),
    ],
    "Machinery": [
        ("Commits", "ops", {"commits": "sum(rate(leaseway_commits_total[$__rate_interval]))"}),
        ("Plan and commit, p99", "s", {
            "plan": quantile(0.99, "leaseway_plan_seconds"),
            "commit": quantile(0.99, "leaseway_commit_seconds"),
            "publish of a fact": quantile(0.99, "leaseway_publish_seconds"),
        }),
        ("Messages behind", "short", {
            "master {{stream}}": each("leaseway_master_lag_messages", "stream", "min"),
            "projector {{stream}}": each("leaseway_projector_lag_messages", "stream", "max"),
        }),
        ("Facts on disk", "bytes", {"{{instance}}": each("leaseway_spool_bytes", "instance")}),
        ("Rows written", "wps", {"{{stream}}": rate("leaseway_projector_rows_total", "stream")}),
        ("Processor", "percentunit", {"{{job}} {{instance}}": rate("process_cpu_seconds_total", "job, instance")}),
    ],
    "Tools of others": [
        ("Posts of webhooks", "reqps", {"{{hook}} {{outcome}}": rate("leaseway_webhook_posts_total", "hook, outcome")}),
        ("Age of the event that waits", "s", {"{{hook}}": each("leaseway_webhook_oldest_age", "hook", "max")}),
        ("Messages behind", "short", {"{{hook}}": each("leaseway_webhook_lag_messages", "hook", "max")}),
        ("Posts again", "reqps", {"{{hook}}": rate("leaseway_webhook_retries_total", "hook")}),
        ("State of webhooks", "short", {"{{hook}} {{state}}": "max by (hook, state) (leaseway_webhook_state) > 0"}),
        ("Missed, and forged", "ops", {
            "missed by {{hook}}": rate("leaseway_webhook_missed_total", "hook"),
            "forged, told to nobody": "sum(rate(leaseway_told_refused_total[$__rate_interval]))",
        }),
    ],
}  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    at_y = 0
    for title, made in ROWS.items():
        panels.append(_row(len(panels) + 1, title, at_y))
        at_y += 1
        for at, panel in enumerate(made):
            x, y = (at % PER_LINE) * WIDTH, at_y + (at // PER_LINE) * HEIGHT
            panels.append(_graph(len(panels) + 1, panel, x, y))
        at_y += -(-len(made) // PER_LINE) * HEIGHT
    return {
        "uid": "leaseway",
        "title": "Leaseway",
        "tags": ["leaseway", "inference"],
        "schemaVersion": 41,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": []},
        "annotations": {"list": []},
        "panels": panels,
    }


def _row(number: int, title: str, y: int) -> dict[str, Any]:
    place = {"x": 0, "y": y, "w": 24, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _graph(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    title, unit, queries = panel
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for at, (legend, query) in enumerate(queries.items())
        ],
    }


def main() -> int:
    """Write the dashboard, or with --check tell whether it is current."""
    text = json.dumps(dashboard(), indent=1) + "\n"
    if "--check" in sys.argv:
        return int(MADE.read_text() != text)
    MADE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
