"""A metrics sink is told every metric of the catalogue, and counters only what was added."""

from collections import defaultdict

from eagleray.monitoring.catalogue import (
    ACCEPTANCE_LENGTH,
    COMPLETION_TOKENS,
    DRAFTED_TOKENS,
    HEALTH,
    REQUESTS,
    REUSED_PROMPT_TOKENS,
    SERVING,
    UNFINISHED,
)
from eagleray.serving.gauges import Telling
from eagleray.serving.health import Health

TAGS = {"application": "plain", "replica": "r"}


class Sink:
    def __init__(self):
        self.gauges, self.counters = {}, defaultdict(float)

    def set(self, metric, value, tags):
        assert tags == TAGS
        self.gauges[metric.name] = value

    def add(self, metric, amount, tags):
        assert tags == TAGS
        assert amount > 0
        self.counters[metric.name] += amount


def test_every_metric_of_the_endpoint_is_told(serve):
    client, sink = serve("one two three", block=2), Sink()
    telling = Telling(client.service, sink, TAGS)
    for answers in (1, 2):
        client.complete()
        telling.tell()
        assert sink.counters[REQUESTS.name] == answers
        assert sink.counters[COMPLETION_TOKENS.name] == 4 * answers
        assert sink.counters[DRAFTED_TOKENS.name] == 2 * answers
    telling.tell()
    assert sink.counters[REQUESTS.name] == 2
    assert sink.gauges == {HEALTH.name: 0, UNFINISHED.name: 0, ACCEPTANCE_LENGTH.name: 3.0}
    # The scripted engine copies nothing of a prompt, and a counter is not told of nothing.
    told = {*sink.gauges, *sink.counters, REUSED_PROMPT_TOKENS.name}
    assert told == {metric.name for metric in SERVING}


def test_the_labels_of_health_are_its_words():
    assert set(HEALTH.labels) == set(Health.__annotations__["status"].__args__)
