"""The loop that drives the engine for everybody."""

import time

import pytest

from eagleray.engines.base import GenerationRequest
from eagleray.serving import loop
from eagleray.serving.loop import EngineLoop


class OneCycle:
    """A stream that ends whatever it has in the next cycle, and remembers what ran together."""

    delivered_tokens = 0

    def __init__(self):
        self.waiting: list[str] = []
        self.together: list[list[str]] = []

    @property
    def unfinished(self) -> int:
        return len(self.waiting)

    def submit(self, request):
        self.waiting.append(request.request_id)

    def advance(self):
        time.sleep(0.05)
        self.together.append(self.waiting)
        self.waiting = []
        return []

    def cancel(self, request_id):
        self.waiting.remove(request_id)


@pytest.fixture
def stream():
    return OneCycle()


@pytest.fixture
def running(stream):
    running = EngineLoop("plain", stream, lambda updates: None)
    yield running
    running.close()


def ask(running, stream, *names, apart_s=0.0):
    """Submit some requests one after the other, and wait until all of them ran."""
    for name in names:
        time.sleep(apart_s)
        request = GenerationRequest(request_id=name, prompt_ids=(1,), max_new_tokens=1)
        assert running.submit(request, "plain", watch=False)
    deadline_s = time.monotonic() + 30.0
    while not set(names) <= {name for cycle in stream.together for name in cycle}:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_requests_that_follow_one_another_run_together(running, stream, monkeypatch):
    """The wait is made long, so that a busy machine does not decide the outcome."""
    monkeypatch.setattr(loop, "PATIENCE", 20.0)
    monkeypatch.setattr(loop, "LONGEST_PATIENCE", 40.0)
    ask(running, stream, "first")
    ask(running, stream, "a", "b", "c", apart_s=0.02)
    assert stream.together == [["first"], ["a", "b", "c"]]


def test_without_patience_a_request_runs_at_once(running, stream, monkeypatch):
    monkeypatch.setattr(loop, "LONGEST_PATIENCE", 0.0)
    ask(running, stream, "first")
    ask(running, stream, "a")
    ask(running, stream, "b")
    assert stream.together == [["first"], ["a"], ["b"]]


def test_closing_ends_the_wait_for_others(running, stream, monkeypatch):
    monkeypatch.setattr(loop, "PATIENCE", 10_000.0)
    monkeypatch.setattr(loop, "LONGEST_PATIENCE", 10_000.0)
    ask(running, stream, "first")
    request = GenerationRequest(request_id="waits", prompt_ids=(1,), max_new_tokens=1)
    assert running.submit(request, "plain", watch=False)
    running.close()
    assert not running.alive
    assert stream.together == [["first"]]
