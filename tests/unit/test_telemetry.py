"""One table of metrics and spans: the page is made from it, the code uses all of it and nothing else, labels are bounded."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from domain.events import BorrowFinished, Fact, Finished, LendReturned, Rejected
from domain.ids import LeaseId, LinkId, ModelId, NodeId, RequestId
from services.node.metrics import NodeMetrics
from services.telemetry.answer import instruments
from services.telemetry.table import ATTRIBUTES, BY_NAME, LABEL_SETS_MAX, METRICS, SPANS, SPANS_BY_NAME

ROOT = Path(__file__).parents[2]
REQUEST, MODEL = RequestId("req_1"), ModelId("chat")


def words_of(folder: str) -> Iterator[str]:
    """Yield every string in the code of a folder, but for the table itself."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        if path.name != "table.py" or path.parent.name != "telemetry":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


WORDS = set(words_of("services"))


def test_the_page_of_metrics_is_current():
    script = ROOT / "docs" / "reference" / "metrics.py"
    check = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert check.returncode == 0, f"run: python {script.relative_to(ROOT)}"


def test_the_code_states_every_metric_of_the_table():
    projector = {name for name in BY_NAME if name.startswith("leaseway_projector_")}  # put together from their parts
    parts = {name.removeprefix("leaseway_projector_") for name in projector}
    assert set(BY_NAME) - projector <= WORDS
    assert parts - {"lag_messages", "void_total"} <= WORDS


def test_the_code_states_no_metric_span_or_attribute_that_is_not_in_the_table():
    assert {word for word in WORDS if word.startswith("leaseway_") and " " not in word and "{" not in word} - set(
        BY_NAME
    ) <= {"leaseway_projector_"}
    stated = {name for span in SPANS for name in span.attributes}
    assert stated == set(ATTRIBUTES)
    assert len(SPANS_BY_NAME) == len(SPANS)
    assert len(BY_NAME) == len(METRICS)


def spans_of(folder: str) -> Iterator[str]:
    """Yield the name of every span that the code opens."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("tracing.span"):
                yield str(ast.literal_eval(node.args[0]))


def test_the_code_opens_every_span_of_the_table_and_no_other():
    assert sorted(spans_of("services")) == sorted(SPANS_BY_NAME)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_named_and_stated_as_prometheus_wants_it(metric):
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.name.endswith("_seconds") == (metric.kind == "histogram")
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert metric.buckets == tuple(sorted(set(metric.buckets)))
    assert metric.about.endswith(".")


def test_a_metric_with_ever_new_labels_stops_growing_and_says_so():
    measured = instruments("node")
    for number in range(LABEL_SETS_MAX + 50):
        measured.add("leaseway_leases_refused_total", f"reason-{number}")
        measured.observe("leaseway_request_wait_seconds", 1.0, f"model-{number}")
    families = {family.name: family for family in prometheus(measured.exposition("")[1].decode())}
    refused = {sample.labels["metric"]: sample.value for sample in families["leaseway_label_sets_refused"].samples}
    assert refused == {"leaseway_leases_refused_total": 50, "leaseway_request_wait_seconds": 50}
    assert len(families["leaseway_leases_refused"].samples) == LABEL_SETS_MAX + 1
    others = [s.value for s in families["leaseway_leases_refused"].samples if s.labels["reason"] == "other"]
    assert others == [50]


@pytest.mark.parametrize(
    ("accept", "parse", "kind"),
    [
        ("", prometheus, "text/plain"),
        ("application/openmetrics-text; version=1.0.0", openmetrics, "application/openmetrics-text"),
    ],
)
def test_what_was_measured_is_read_by_the_library_s_own_parser_in_either_form(accept, parse, kind):
    measured = instruments("node")
    measured.observe("leaseway_request_wait_seconds", 0.3, "m")
    measured.observe("leaseway_request_wait_seconds", 0.25, "m")  # on a bound: it belongs to what it bounds
    measured.observe("leaseway_request_wait_seconds", 9000.0, "m")
    content_type, text = measured.exposition(accept)
    assert content_type.startswith(kind)
    families = {family.name: family for family in parse(text.decode())}
    samples = {
        (s.name.removeprefix("leaseway_request_wait_seconds_"), s.labels.get("le")): s.value
        for s in families["leaseway_request_wait_seconds"].samples
    }
    assert samples["bucket", "0.1"] == 0
    assert samples["bucket", "0.25"] == 1
    assert samples["bucket", "0.5"] == 2
    assert samples["bucket", "640.0"] == 2
    assert samples["bucket", "+Inf"] == samples["count", None] == 3
    assert samples["sum", None] == pytest.approx(9000.55)
    assert "process_cpu_seconds" in families


def lend(reason: str) -> LendReturned:
    return LendReturned(
        request=REQUEST, model=MODEL, helper=NodeId("h"), link=LinkId("l"), lease=LeaseId("x"), reason=reason
    )


def test_a_node_counts_what_its_facts_say():
    measured = NodeMetrics({}, lambda: True)
    facts: list[Fact] = [
        Finished(request=REQUEST, model=MODEL, wait_us=2_000_000, service_us=500_000, tokens_out=7, helper="h"),
        Rejected(request=REQUEST, model=MODEL, code="queue_full", status=503),
        lend("own_work"),
        BorrowFinished(
            request=REQUEST, model=MODEL, owner=NodeId("o"), link=LinkId("l"), lease=LeaseId("x"),
            work=1, service_us=1, status=500, ok=False,
        ),
    ]  # fmt: skip
    for fact in facts:
        measured.fact(fact)
    text = measured.instruments.exposition("")[1].decode()
    for line in (
        'leaseway_requests_total{code="",model="chat",outcome="finished"} 1.0',
        'leaseway_requests_total{code="queue_full",model="chat",outcome="rejected"} 1.0',
        'leaseway_request_wait_seconds_count{model="chat"} 1.0',
        'leaseway_request_service_seconds_sum{model="chat",served_by="helper"} 0.5',
        'leaseway_tokens_total{direction="out",model="chat"} 7.0',
        'leaseway_lend_ends_total{helper="h",model="chat",outcome="returned",reason="own_work"} 1.0',
        'leaseway_borrows_total{model="chat",outcome="failed",owner="o"} 1.0',
        "leaseway_facts_total 4.0",
        "leaseway_draining 1.0",
    ):
        assert line in text.splitlines(), line
