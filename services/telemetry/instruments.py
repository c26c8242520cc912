"""The metrics of one process: made from the table, added to as things happen, shown to whoever scrapes.

A process adds in one thread, so adding is a look-up and a sum, without the lock that the client library's own instruments take;
the library says it all in either text form. What can be looked at (a queue's length) is read only when somebody asks.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from services.telemetry.table import BY_NAME, LABEL_SETS_MAX, Metric, Process, stated_by

Labels = tuple[str, ...]
"""Values, in the order of the table."""
Reading = Iterable[tuple[Labels, float]]
OTHER: Final = "other"
_REFUSED: Final = "leaseway_label_sets_refused_total"


class _Series:
    """How often a histogram's value lay between which bounds, and the sum of all."""

    __slots__ = ("counts", "total")

    def __init__(self, buckets: int) -> None:
        self.counts, self.total = [0] * (buckets + 1), 0.0


class Instruments(Collector):
    """What one process measures. Every name must stand in the table for this process."""

    def __init__(self, process: Process, version: str) -> None:
        """Begin with nothing counted."""
        self.process = process
        self._metrics = stated_by(process)
        self._counters: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, _Series]] = {}
        self._readings: dict[str, Callable[[], Reading]] = {}
        for metric in self._metrics:
            nothing = not metric.labels
            if metric.kind == "counter":
                self._counters[metric.name] = {(): 0.0} if nothing else {}
            elif metric.kind == "histogram":
                self._histograms[metric.name] = {(): _Series(len(metric.buckets))} if nothing else {}
        self._registry = CollectorRegistry()
        for kind in (ProcessCollector, PlatformCollector, GCCollector):
            kind(registry=self._registry)
        self._registry.register(self)
        self.read("leaseway_build_info", lambda: [((version,), 1.0)])

    def add(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Add to a counter."""
        counts = self._counters[name]
        if labels not in counts:
            labels = self._bounded(name, counts, labels)
        counts[labels] = counts.get(labels, 0.0) + by

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Add a value to a histogram."""
        known = self._histograms[name]
        series = known.get(labels)
        buckets = BY_NAME[name].buckets
        if series is None:
            series = known.setdefault(self._bounded(name, known, labels), _Series(len(buckets)))
        series.counts[bisect_left(buckets, value)] += 1
        series.total += value

    def read(self, name: str, source: Callable[[], Reading]) -> None:
        """Have `source` say the values of a gauge, or of a counter that is kept elsewhere, whenever somebody asks."""
        assert self.process in BY_NAME[name].by, f"{name}: is not stated by {self.process}"
        self._readings[name] = source

    def state(self, name: str, source: Callable[[], float]) -> None:
        """Have `source` say the value of a metric without labels."""
        self.read(name, lambda: [((), float(source()))])

    def exposition(self, accept: str) -> tuple[str, bytes]:
        """Return (content type, text) in the form that `accept` asks for: OpenMetrics, or Prometheus' own."""
        encoder, content_type = choose_encoder(accept)
        return content_type, encoder(self._registry)

    def describe(self) -> Iterable[Family]:
        """Say nothing to the registry: no other collector of it has names of ours."""
        return ()

    def collect(self) -> Iterator[Family]:
        """Yield every metric as it is now, in the order of the table."""
        for metric in self._metrics:
            if metric.name in self._readings:
                yield _looked_at(metric, self._readings[metric.name]())
            elif metric.kind == "counter":
                yield _looked_at(metric, self._counters[metric.name].items())
            elif metric.kind == "histogram":
                yield _histogram(metric, self._histograms[metric.name])

    def _bounded(self, name: str, known: "dict[Labels, float] | dict[Labels, _Series]", labels: Labels) -> Labels:
        """Return `labels` if the metric may have one more set of them, else the set in which the rest is counted."""
        if len(known) < LABEL_SETS_MAX:
            return labels
        self.add(_REFUSED, name)
        return (OTHER,) * len(labels)


def _looked_at(metric: Metric, reading: Reading) -> Family:
    made = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = made(metric.name, metric.about, labels=metric.labels)
    for at, (labels, value) in enumerate(reading):
        if at <= LABEL_SETS_MAX:
            family.add_metric(labels, value)
    return family


def _histogram(metric: Metric, known: dict[Labels, _Series]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.about, labels=metric.labels)
    for labels, series in known.items():
        count, buckets = 0, []
        for bound, counted in zip((*map(str, metric.buckets), "+Inf"), series.counts, strict=True):
            count += counted
            buckets.append((bound, count))
        family.add_metric(labels, buckets, series.total)
    return family
