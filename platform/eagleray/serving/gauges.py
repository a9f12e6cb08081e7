"""What a service tells a metrics sink: gauges as they are, counters as what was added since the last time."""

from collections.abc import Iterator
from typing import Protocol

from eagleray.monitoring.catalogue import (
    ACCEPTANCE_LENGTH,
    ACCEPTED_TOKENS,
    COMPLETION_TOKENS,
    CYCLES,
    DRAFTED_TOKENS,
    HEALTH,
    PROMPT_TOKENS,
    REQUESTS,
    REUSED_PROMPT_TOKENS,
    UNFINISHED,
    Metric,
)
from eagleray.serving.service import Service


class Sink(Protocol):
    """Where metrics go."""

    def set(self, metric: Metric, value: float, tags: dict[str, str]) -> None:
        """Set a gauge."""
        ...

    def add(self, metric: Metric, amount: float, tags: dict[str, str]) -> None:
        """Add to a counter."""
        ...


class Telling:
    """Tells one sink of one service."""

    def __init__(self, service: Service, sink: Sink, tags: dict[str, str]):
        self._service = service
        self._sink = sink
        self._tags = tags
        self._told: dict[str, int] = {}

    def tell(self) -> None:
        """Set every gauge that is known, and add to every counter."""
        for metric, value in self._gauges():
            self._sink.set(metric, value, self._tags)
        account = self._service.account
        for metric, total in (
            (REQUESTS, account.requests),
            (PROMPT_TOKENS, account.prompt_tokens),
            (REUSED_PROMPT_TOKENS, account.reused_prompt_tokens),
            (COMPLETION_TOKENS, account.completion_tokens),
            (CYCLES, account.cycles),
            (DRAFTED_TOKENS, account.drafted_tokens),
            (ACCEPTED_TOKENS, account.accepted_tokens),
        ):
            # Ray's counters refuse to add nothing.
            if (new := total - self._told.get(metric.name, 0)) > 0:
                self._sink.add(metric, new, self._tags)
            self._told[metric.name] = total

    def _gauges(self) -> Iterator[tuple[Metric, float]]:
        yield HEALTH, HEALTH.labels.index(self._service.health.status)
        yield UNFINISHED, self._service.unfinished
        latest = self._service.account.latest
        if latest.cycles:
            yield ACCEPTANCE_LENGTH, latest.acceptance_length
