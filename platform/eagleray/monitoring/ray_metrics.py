"""The sink that hands metrics to Ray, whose agent on each node exports them to Prometheus."""

from collections.abc import Mapping

from ray.util.metrics import Counter, Gauge

from eagleray.monitoring.catalogue import Metric


class RayMetrics:
    """Sets gauges and adds to counters of the catalogue. For a process that has joined a Ray cluster."""

    def __init__(self, metrics: tuple[Metric, ...]):
        self._gauges = {
            metric.name: Gauge(metric.name, description=metric.description, tag_keys=metric.tags)
            for metric in metrics
            if metric.kind == "gauge"
        }
        self._counters = {
            metric.name: Counter(metric.name, description=metric.description, tag_keys=metric.tags)
            for metric in metrics
            if metric.kind == "counter"
        }

    def set(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Set a gauge."""
        self._gauges[metric.name].set(value, tags=dict(tags))

    def add(self, metric: Metric, amount: float, tags: Mapping[str, str]) -> None:
        """Add to a counter."""
        self._counters[metric.name].inc(amount, tags=dict(tags))
