"""The server process: it comes up or says why not, answers, and leaves nothing behind."""

import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from eagleray.engines.vllm.config import VllmConfig
from eagleray.engines.vllm.process import VllmServer
from eagleray.errors import EngineError

Start = Callable[..., VllmServer]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start the stand-in in one of its modes."""
    program = tmp_path / "environment" / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    stand_in = Path(__file__).parent / "stand_in.py"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {stand_in} "$@"\n')
    program.chmod(0o755)

    def launch(mode: str = "answers", start_timeout_s: float = 60.0) -> VllmServer:
        monkeypatch.setenv("STAND_IN_MODE", mode)
        config = VllmConfig(environment=tmp_path / "environment", start_timeout_s=start_timeout_s)
        return VllmServer(config, tmp_path, None, tmp_path / "server.log")

    return launch


def child_of(log: Path) -> int:
    return int(next(line for line in log.read_text().splitlines() if line.startswith("child")).split()[1])


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_an_answer_comes_with_its_cycles_and_stopping_ends_every_process(start: Start) -> None:
    with start() as server:
        completion = server.complete([40, 41], 6)
        child = child_of(server.log)
        assert not is_gone(child)
    assert completion.answer_ids == (40, 41, 42, 43, 44, 45)
    assert completion.finish_reason == "length"
    # Five tokens follow the first; the last verification was worth four, and one fitted.
    counted = [(cycle.drafted, cycle.accepted, cycle.delivered) for cycle in completion.cycles]
    assert counted == [(3, 0, 1), (3, 2, 3), (3, 1, 1)]
    assert is_gone(child)
    server.stop()


def test_counters_tell_what_answers_may_not(start: Start) -> None:
    with start() as server:
        counters = server.counters()
    assert (counters.drafts, counters.drafted, counters.accepted) == (3, 9, 5)
    with pytest.raises(EngineError, match="did not give /metrics"):
        server.counters()


def test_without_a_drafter_there_are_no_cycles(start: Start) -> None:
    with start("tells nothing") as server:
        assert server.complete([40], 6).cycles == ()


def test_an_answer_in_which_nothing_was_drafted_is_of_plain_cycles(start: Start) -> None:
    with start("drafts nothing") as server:
        cycles = server.complete([40], 3).cycles
    assert [(cycle.drafted, cycle.accepted, cycle.delivered) for cycle in cycles] == [(0, 0, 1)] * 2


def test_a_server_that_ends_while_starting_is_quoted(start: Start) -> None:
    with pytest.raises(EngineError, match=r"ended with exit code 1 while starting(.|\n)*no such flag"):
        start("fails")


def test_a_silent_server_is_given_up_and_stopped(start: Start, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"did not answer within 3 s(.|\n)*loading the model"):
        start("hangs", start_timeout_s=3.0)
    assert is_gone(child_of(tmp_path / "server.log"))


def test_a_server_that_dies_over_a_request_is_quoted_and_cleaned_up(start: Start) -> None:
    with start("dies") as server:
        child = child_of(server.log)
        with pytest.raises(EngineError, match=r"did not answer a request(.|\n)*out of memory"):
            server.complete([1], 2)
    assert is_gone(child)


@pytest.mark.parametrize(
    ("mode", "message"),
    [("refuses", "HTTP 400(.|\n)*prompt too long"), ("is strange", "unknown form(.|\n)*choices")],
)
def test_answers_that_are_none_are_errors(start: Start, mode: str, message: str) -> None:
    with start(mode) as server, pytest.raises(EngineError, match=message):
        server.complete([1], 2)


def test_a_missing_environment_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    config = VllmConfig(environment=tmp_path / "nowhere")
    with pytest.raises(EngineError, match="make engine-vllm"):
        VllmServer(config, tmp_path, None, tmp_path / "log")
