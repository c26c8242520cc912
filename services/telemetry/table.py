"""Every metric and every span, once: the instruments, docs/reference/metrics.md and the dashboard's check are made from it.

A label has few values by nature (a model that is configured, a node that is enrolled, a code of a table); beside that no metric
has more than `LABEL_SETS_MAX` sets of labels. A request's id, a tenant or a text of a client is never a label.
"""

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]
Process = Literal["gateway", "node", "master", "projector", "console"]

PROCESSES: Final[tuple[Process, ...]] = ("gateway", "node", "master", "projector", "console")
LABEL_SETS_MAX: Final = 500
"""Sets of labels of one metric; what comes beyond is counted under `other`."""

REQUEST_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
"""Upper bounds of what a request takes or waits, in seconds."""
STEP_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of one step of the machinery, in seconds."""


class Metric(NamedTuple):
    """One metric."""

    name: str
    kind: Kind
    unit: str
    """Of its value, in the plural; empty for a state that is 0 or 1."""
    labels: tuple[str, ...]
    by: tuple[Process, ...]
    """Processes that state it."""
    about: str
    buckets: tuple[float, ...] = ()
    """Upper bounds; histograms only."""


class SpanKind(NamedTuple):
    """One kind of span."""

    name: str
    by: tuple[Process, ...]
    parent: str
    """The span that it lies in; of `gateway.request` the client's own, if it sent a `traceparent`."""
    attributes: tuple[str, ...]
    about: str


_GATEWAY: Final[tuple[Process, ...]] = ("gateway",)
_NODE: Final[tuple[Process, ...]] = ("node",)
_MASTER: Final[tuple[Process, ...]] = ("master",)
_PROJECTOR: Final[tuple[Process, ...]] = ("projector",)

ON_BUS: Final[tuple[Process, ...]] = ("gateway", "node", "master", "projector")

_EVERY: Final = (
    Metric("leaseway_build_info", "gauge", "", ("version",), PROCESSES, "1, with the version that runs."),
    Metric("leaseway_bus_connected", "gauge", "", (), ON_BUS, "1 while there is a connection to a NATS server."),
    Metric(
        "leaseway_label_sets_refused_total", "counter", "observations", ("metric",), PROCESSES,
        "Observations counted under `other`, since their metric has as many label sets as it may have.",
    ),
)  # fmt: skip

_OF_GATEWAYS: Final = (
    Metric(
        "leaseway_gateway_requests_total", "counter", "requests", ("model", "outcome"), _GATEWAY,
        "Requests for work, by outcome: ok, client_error (4xx), unavailable (429, 503, 504), failed (other 5xx), cancelled. "
        "A model that no node serves is counted as `unknown`.",
    ),
    Metric(
        "leaseway_gateway_request_seconds", "histogram", "seconds", ("model",), _GATEWAY,
        "From the request's body to the end of its answer, answered ones only.", REQUEST_S,
    ),
    Metric(
        "leaseway_gateway_time_to_first_byte_seconds", "histogram", "seconds", ("model",), _GATEWAY,
        "From the request's body to the first byte of its answer, answered ones only.", REQUEST_S,
    ),
    Metric(
        "leaseway_gateway_in_progress", "gauge", "requests", ("node",), _GATEWAY,
        "Requests that are at a node now, of this gateway.",
    ),
    Metric(
        "leaseway_gateway_failovers_total", "counter", "requests", ("node",), _GATEWAY,
        "Requests given to a second node, since this one provably had not started them.",
    ),
    Metric("leaseway_gateway_nodes_able", "gauge", "nodes", ("model",), _GATEWAY, "Nodes that could serve the model now."),
    Metric("leaseway_gateway_relaying", "gauge", "requests", (), _GATEWAY, "Lends that are being passed on for nodes now."),
)  # fmt: skip

_REQUESTS: Final = (
    Metric(
        "leaseway_requests_total", "counter", "requests", ("model", "outcome", "code"), _NODE,
        "Own requests that ended: finished, failed, cancelled, rejected or expired, and the code that says why.",
    ),
    Metric(
        "leaseway_request_wait_seconds", "histogram", "seconds", ("model",), _NODE,
        "From arrival to the start of service, of requests that were served.", REQUEST_S,
    ),
    Metric(
        "leaseway_request_service_seconds", "histogram", "seconds", ("model", "served_by"), _NODE,
        "In service alone, by whom: `owner` or `helper`.", REQUEST_S,
    ),
    Metric(
        "leaseway_time_to_first_token_seconds", "histogram", "seconds", ("model",), _NODE,
        "From arrival to the first byte of the answer (of a stream: its first event), whoever served it.", REQUEST_S,
    ),
    Metric("leaseway_tokens_total", "counter", "tokens", ("model", "direction"), _NODE, "Tokens that engines stated: in, out."),
    Metric("leaseway_requests_held", "gauge", "requests", ("model",), _NODE, "Own requests that wait in the router now."),
    Metric("leaseway_requests_kept", "gauge", "requests", ("model",), _NODE, "Of the held ones, those kept for a faster helper."),
    Metric("leaseway_requests_in_engine", "gauge", "requests", ("model",), _NODE, "Own and borrowed requests in the engine now."),
    Metric("leaseway_requests_lent", "gauge", "requests", ("model",), _NODE, "Own requests that are at helpers now."),
    Metric("leaseway_requests_borrowed", "gauge", "requests", ("model",), _NODE, "Others' requests at the desk now."),
)  # fmt: skip

_LENDING: Final = (
    Metric("leaseway_lends_total", "counter", "requests", ("model", "helper"), _NODE, "Own requests sent to a helper."),
    Metric(
        "leaseway_lend_ends_total", "counter", "requests", ("model", "helper", "outcome", "reason"), _NODE,
        "How lends ended: answered, returned, busy, cut_off or relay_refused, and why.",
    ),
    Metric(
        "leaseway_borrows_total", "counter", "requests", ("model", "owner", "outcome"), _NODE,
        "Others' requests at this node's desk: accepted; then finished, failed, returned or busy.",
    ),
    Metric("leaseway_leases_live", "gauge", "leases", ("model",), _NODE, "Leases under which the model may lend now."),
    Metric("leaseway_lease_slots", "gauge", "requests", ("model",), _NODE, "Slots of those leases together."),
    Metric("leaseway_leases_refused_total", "counter", "leases", ("reason",), _NODE, "Grants that this owner did not take."),
    Metric(
        "leaseway_native_waited_seconds", "histogram", "seconds", ("model",), _NODE,
        "Waits of own requests behind borrowed jobs inside the engine.", REQUEST_S,
    ),
)  # fmt: skip

_ENGINES: Final = (
    Metric("leaseway_engine_up", "gauge", "", ("model",), _NODE, "1 while the model's engine is up, or holds the model."),
    Metric("leaseway_loads_total", "counter", "loads", ("model", "cause"), _NODE, "Models loaded, by cause."),
    Metric("leaseway_load_seconds", "histogram", "seconds", ("model",), _NODE, "What those loads took.", REQUEST_S),
    Metric("leaseway_load_failures_total", "counter", "loads", ("model",), _NODE, "Loads that failed, and engines that died."),
)  # fmt: skip

_FACTS: Final = (
    Metric("leaseway_facts_total", "counter", "facts", (), _NODE, "Facts that this node stated."),
    Metric("leaseway_facts_ok", "gauge", "", (), _NODE, "1 while facts are acknowledged; at 0 nothing is lent."),
    Metric(
        "leaseway_spool_bytes", "gauge", "bytes", (), _NODE,
        "Facts on disk: those that the bus has not acknowledged, and up to 8 MiB of those that it has.",
    ),
    Metric(
        "leaseway_publish_seconds", "histogram", "seconds", (), _NODE,
        "From the first sending of a fact to its acknowledgement.", STEP_S,
    ),
    Metric("leaseway_draining", "gauge", "", (), _NODE, "1 once the node takes nothing new."),
)  # fmt: skip

_OF_MASTERS: Final = (
    Metric("leaseway_master_mode", "gauge", "", ("mode",), _MASTER, "1 for what it is: starting, standby, active, safe_mode."),
    Metric("leaseway_safe_mode", "gauge", "", (), _MASTER, "1 while history is in doubt and nothing is lent."),
    Metric("leaseway_term", "gauge", "", (), _MASTER, "Term of the state: how often another master took over."),
    Metric("leaseway_version", "gauge", "", (), _MASTER, "Version of the ledger that this master has."),
    Metric("leaseway_commits_total", "counter", "commits", (), _MASTER, "Commits that this master stored."),
    Metric("leaseway_decisions_total", "counter", "decisions", ("kind",), _MASTER, "Decisions in them, by kind."),
    Metric(
        "leaseway_verdicts_total", "counter", "candidates", ("outcome", "code"), _MASTER,
        "Candidates of its plans: granted, probe, skipped or left_out, and the code that says why "
        "(docs/reference/reasons.md).",
    ),
    Metric("leaseway_plan_seconds", "histogram", "seconds", (), _MASTER, "What one round of deciding took.", STEP_S),
    Metric("leaseway_commit_seconds", "histogram", "seconds", (), _MASTER, "From a commit's sending to its answer.", STEP_S),
    Metric(
        "leaseway_master_lag_messages", "gauge", "messages", ("stream",), _MASTER,
        "Stored messages that are in no commit yet; -1 while the bus does not say.",
    ),
    Metric("leaseway_feed_ok", "gauge", "", (), _MASTER, "1 while decisions reach the feed that nodes follow."),
    Metric("leaseway_cluster_leases", "gauge", "leases", (), _MASTER, "Leases that hold now, of all owners."),
    Metric("leaseway_cluster_lease_slots", "gauge", "requests", (), _MASTER, "Slots of those leases together."),
    Metric("leaseway_cluster_requests_out", "gauge", "requests", (), _MASTER, "Requests at helpers under them."),
    Metric(
        "leaseway_breaker_open", "gauge", "", ("node", "model", "state"), _MASTER,
        "1 for a helper's model that is shut out (`open`) or gets one request at a time (`half_open`); closed ones are absent.",
    ),
    Metric("leaseway_node_health", "gauge", "", ("node", "health"), _MASTER, "1 for the health of each enrolled node."),
)  # fmt: skip

_OF_PROJECTORS: Final = (
    Metric(
        "leaseway_projector_lag_messages", "gauge", "messages", ("stream",), _PROJECTOR,
        "Stored messages that are in no table yet; -1 while the bus does not say.",
    ),
    Metric("leaseway_projector_position", "gauge", "", ("stream",), _PROJECTOR, "Sequence up to which all is in the tables."),
    Metric("leaseway_projector_rows_total", "counter", "rows", ("stream",), _PROJECTOR, "Rows written."),
    Metric(
        "leaseway_projector_unreadable_total", "counter", "messages", ("stream",), _PROJECTOR,
        "Messages that this release cannot read; their bytes are kept.",
    ),
    Metric(
        "leaseway_projector_gone_total", "counter", "messages", ("stream",), _PROJECTOR,
        "Messages that the stream no longer had when they were to become rows: they are in no table.",
    ),
    Metric(
        "leaseway_projector_halved_total", "counter", "inserts", ("stream",), _PROJECTOR,
        "Inserts that were too much for ClickHouse's memory and went in as halves.",
    ),
    Metric("leaseway_projector_void_total", "counter", "commits", (), _PROJECTOR, "Commits that do not continue the ledger."),
    Metric("leaseway_clickhouse_up", "gauge", "", (), _PROJECTOR, "1 while ClickHouse is open and every stream goes on."),
    Metric(
        "leaseway_clickhouse_trouble", "gauge", "", ("cause",), _PROJECTOR,
        "1 for each reason for which ClickHouse takes no rows now; absent while it does.",
    ),
)  # fmt: skip

_OUTWARD: Final = (
    Metric(
        "leaseway_webhook_posts_total", "counter", "posts", ("hook", "outcome"), _PROJECTOR,
        "Posts to the endpoint of a webhook, by outcome: taken (2xx), refused (any other status) or no_answer.",
    ),
    Metric(
        "leaseway_webhook_retries_total", "counter", "posts", ("hook",), _PROJECTOR,
        "Of those posts, the ones of an event that had been posted before.",
    ),
    Metric(
        "leaseway_webhook_missed_total", "counter", "messages", ("hook",), _PROJECTOR,
        "Messages that a webhook never read: they were older than the streams keep, or a stream was made anew.",
    ),
    Metric(
        "leaseway_webhook_lag_messages", "gauge", "messages", ("hook",), _PROJECTOR,
        "Stored messages that a webhook has not passed yet, those included that it does not want; -1 while the bus does not say.",
    ),
    Metric(
        "leaseway_webhook_oldest_age", "gauge", "seconds", ("hook",), _PROJECTOR,
        "Since when the event is stored that the endpoint has not taken yet; 0 while none waits for it.",
    ),
    Metric(
        "leaseway_webhook_state", "gauge", "", ("hook", "state"), _PROJECTOR,
        "1 for what a webhook is: starting, ok, retrying, waiting (for the bus, or room for its place) or disabled.",
    ),
    Metric(
        "leaseway_told_refused_total", "counter", "messages", (), _PROJECTOR,
        "Messages among the decisions that carry no signature of the master's: neither events nor webhooks tell of them.",
    ),
)  # fmt: skip

_OF_CONSOLES: Final = (
    Metric(
        "leaseway_console_pages_total", "counter", "pages", ("page", "outcome"), ("console",),
        "Pages that were shown, by outcome: ok, or the class of their status (4xx, 5xx).",
    ),
)  # fmt: skip

METRICS: Final = (
    *_EVERY, *_OF_GATEWAYS, *_REQUESTS, *_LENDING, *_ENGINES, *_FACTS, *_OF_MASTERS, *_OF_PROJECTORS, *_OUTWARD, *_OF_CONSOLES
)  # fmt: skip
BY_NAME: Final = {metric.name: metric for metric in METRICS}

ATTRIBUTES: Final = {
    "gen_ai.request.model": "Public id of the model; inside a helper, the helper's own.",
    "gen_ai.usage.input_tokens": "Tokens in, if the engine stated them.",
    "gen_ai.usage.output_tokens": "Tokens out, if the engine stated them.",
    "http.response.status_code": "Status of the answer.",
    "error.type": "Code of what went wrong: an API error's code, else the name of the exception. Never its message.",
    "leaseway.request": "The request's id, as in events and rows.",
    "leaseway.owner": "Node that received the request.",
    "leaseway.helper": "Node that it is lent to.",
    "leaseway.link": "The link it is lent over.",
    "leaseway.lease": "The lease it is lent under.",
    "leaseway.node": "Node that a gateway chose.",
    "leaseway.wait_reason": "What it waited for: `slot` (a free place in the engine) or `helper` (kept for a faster one).",
    "leaseway.next": "What ended the wait: dispatch, lend or refuse.",
    "leaseway.outcome": "How a lend ended: answered, returned, busy, refused, failed or stopped.",
}
"""Name -> meaning of every attribute of a span."""

_MODEL, _REQUEST, _ERROR = "gen_ai.request.model", "leaseway.request", "error.type"
_STATUS, _OWNER, _HELPER = "http.response.status_code", "leaseway.owner", "leaseway.helper"
_LINK, _LEASE, _OUTCOME = "leaseway.link", "leaseway.lease", "leaseway.outcome"
_TOKENS: Final = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")

SPANS: Final = (
    SpanKind(
        "gateway.request", _GATEWAY, "", (_MODEL, "leaseway.node", _STATUS, _ERROR),
        "A client's request at a gateway, until its answer is out.",
    ),
    SpanKind(
        "node.request", _NODE, "gateway.request", (_MODEL, _REQUEST, _OWNER, _STATUS, _ERROR),
        "The same at its owner; without a gateway it is the outermost one.",
    ),
    SpanKind(
        "node.held", _NODE, "node.request", (_MODEL, _REQUEST, "leaseway.wait_reason", "leaseway.next"),
        "The request waits at its owner; once more after a helper that did not do it. One that never waits has none.",
    ),
    SpanKind(
        "node.lend", _NODE, "node.request", (_MODEL, _REQUEST, _OWNER, _HELPER, _LINK, _LEASE, _OUTCOME, _STATUS, _ERROR),
        "From the sending to a helper until its answer is with the client, or it is clear that there is none.",
    ),
    SpanKind(
        "helper.serve", _NODE, "node.lend", (_MODEL, _REQUEST, _OWNER, _HELPER, _LINK, _LEASE, _OUTCOME, _ERROR),
        "The request at its helper, waiting included.",
    ),
    SpanKind(
        "engine.generate", _NODE, "node.request, helper.serve", (_MODEL, _REQUEST, *_TOKENS, _STATUS, _ERROR),
        "An engine works on it. The engine gets the span as its `traceparent`.",
    ),
)  # fmt: skip
SPANS_BY_NAME: Final = {span.name: span for span in SPANS}


def stated_by(process: Process) -> tuple[Metric, ...]:
    """Return what `process` states, in the order of the table."""
    return tuple(metric for metric in METRICS if process in metric.by)
