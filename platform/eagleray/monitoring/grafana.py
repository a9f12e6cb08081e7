"""Grafana dashboards made from the catalogue: one panel a metric, filtered by session and run or application.

`SessionName` and the data source variable are those of Ray's own dashboards, so links between them keep their
filters.
"""

from collections.abc import Sequence
from typing import Any

from eagleray.monitoring.catalogue import SERVING, TRAINING, WATCHDOG, Metric

PANEL_WIDTH, PANEL_HEIGHT, COLUMNS = 12, 8, 2
GRAFANA_UNITS = {"s": "s", "ratio": "percentunit", "index": "none", "count": "short"}
GRAFANA_UNITS |= dict.fromkeys(("requests", "tokens", "nats"), "short")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def watchdog_dashboard() -> dict[str, Any]:
    """The dashboard of the watchdog."""
    return dashboard("eagleray-watchdog", "EagleRay watchdog", WATCHDOG)


def training_dashboard() -> dict[str, Any]:
    """The dashboard of trainings."""
    return dashboard("eagleray-training", "EagleRay training", TRAINING)


def serving_dashboard() -> dict[str, Any]:
    """The dashboard of the endpoint."""
    return dashboard("eagleray-serving", "EagleRay serving", SERVING)


def dashboard(uid: str, title: str, metrics: Sequence[Metric]) -> dict[str, Any]:
    """Grafana's JSON for a dashboard over some metrics, which share their first tag."""
    scope = metrics[0].tags[0]
    return {
        "uid": uid,
        "title": title,
        "schemaVersion": 39,
        "editable": False,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "tags": ["eagleray"],
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                _variable("SessionName", f"label_values(ray_{metrics[0].name}, SessionName)"),
                _variable(scope, f"label_values(ray_{metrics[0].name}, {scope})"),
            ]
        },
        "panels": [_panel(metric, number) for number, metric in enumerate(metrics)],
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": query,
        "refresh": 2,
        "includeAll": True,
        "multi": False,
        "allValue": ".*",
    }


def _panel(metric: Metric, number: int) -> dict[str, Any]:
    timeline = metric.unit == "index"
    return {
        "id": number + 1,
        "title": metric.description,
        "type": "state-timeline" if timeline else "timeseries",
        "datasource": SOURCE,
        "gridPos": {
            "x": PANEL_WIDTH * (number % COLUMNS),
            "y": PANEL_HEIGHT * (number // COLUMNS),
            "w": PANEL_WIDTH,
            "h": PANEL_HEIGHT,
        },
        "fieldConfig": {
            "defaults": {"unit": GRAFANA_UNITS[metric.unit], "mappings": _mappings(metric)},
            "overrides": [],
        },
        "targets": [{"refId": "A", "expr": _query(metric), "legendFormat": _legend(metric)}],
    }


def _query(metric: Metric) -> str:
    scope = metric.tags[0]
    series = f'ray_{metric.name}{{{scope}=~"${scope}", SessionName=~"$SessionName"}}'
    by = ", ".join(metric.tags)
    return (
        f"sum by ({by}) (increase({series}[5m]))" if metric.kind == "counter" else f"max by ({by}) ({series})"
    )


def _legend(metric: Metric) -> str:
    return " ".join(f"{{{{{tag}}}}}" for tag in metric.tags)


def _mappings(metric: Metric) -> list[dict[str, Any]]:
    if not metric.labels:
        return []
    options = {str(value): {"text": label, "index": value} for value, label in enumerate(metric.labels)}
    return [{"type": "value", "options": options}]
