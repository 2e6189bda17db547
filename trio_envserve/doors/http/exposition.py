"""The metrics of a server and its door, in the format of Prometheus.  Needs prometheus-client.

Nothing is registered for the process: a program around the door keeps its own metrics to itself.
"""

from __future__ import annotations

from itertools import accumulate
from types import SimpleNamespace
from typing import Final

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder

from ...core.durations import BOUNDS_S, Durations
from .metrics import METRICS, PREFIX, Metric, ScrapedValues

_BUCKETS: Final = [*map(str, BOUNDS_S), "+Inf"]


def write(seen: ScrapedValues, accept: str) -> tuple[str, bytes]:
    """The metrics in the form that ``accept`` asks for, after the type of that."""
    encode, media = choose_encoder(accept)
    families = SimpleNamespace(collect=lambda: [_family(metric, seen) for metric in METRICS])
    return media, encode(families)


def _family(metric: Metric, seen: ScrapedValues) -> Family:
    name = f"{PREFIX}{metric.name}"
    if metric.durations:
        histogram = HistogramMetricFamily(name, metric.meaning, labels=())
        if seen.stats is not None:
            took = Durations()
            took.take(getattr(seen.stats, metric.durations))
            counts = map(float, accumulate(took.counts))  # Prometheus has them cumulated
            histogram.add_metric((), list(zip(_BUCKETS, counts, strict=True)), took.sum_s)
        return histogram
    family: CounterMetricFamily | GaugeMetricFamily
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = make(name, metric.meaning, labels=metric.labels)
    for labels, value in metric.read(seen):
        family.add_metric(labels, value)
    return family
