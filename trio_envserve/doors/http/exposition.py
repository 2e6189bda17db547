"""The metrics of a server and its door, in the format of Prometheus.  Needs prometheus-client.

The registry is the door's own: nothing is registered for the process, and a program around
it keeps its own metrics to itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final, final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from ...core.durations import BOUNDS_S, Durations
from .metrics import METRICS, PREFIX, Metric, Seen

_BUCKETS: Final = [*map(str, BOUNDS_S), "+Inf"]


@final
class _Seen(Collector):
    """Collects from what was seen last."""

    seen: Seen

    def collect(self) -> Iterator[Family]:
        """All metrics of the table."""
        for metric in METRICS:
            yield _family(metric, self.seen)


@final
class Exposition:
    """Writes what was seen."""

    def __init__(self) -> None:
        self._collector = _Seen()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._collector)

    def write(self, seen: Seen, accept: str) -> tuple[str, bytes]:
        """The metrics in the form that ``accept`` asks for, after the type of that."""
        encode, media = choose_encoder(accept)
        self._collector.seen = seen
        return media, encode(self._registry)


def _family(metric: Metric, seen: Seen) -> Family:
    name = f"{PREFIX}{metric.name}"
    if metric.durations is not None:
        histogram = HistogramMetricFamily(name, metric.meaning, labels=())
        if seen.stats is not None:
            _add(histogram, metric.durations(seen.stats))
        return histogram
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.kind == "counter":
        family = CounterMetricFamily(name, metric.meaning, labels=metric.labels)
    else:
        family = GaugeMetricFamily(name, metric.meaning, labels=metric.labels)
    for labels, value in metric.read(seen):
        family.add_metric(labels, value)
    return family


def _add(histogram: HistogramMetricFamily, record: Mapping[str, float]) -> None:
    took = Durations()
    took.take(record)
    counts = map(float, accumulate(took.counts))  # Prometheus has them cumulated
    histogram.add_metric((), list(zip(_BUCKETS, counts, strict=True)), took.sum_s)
