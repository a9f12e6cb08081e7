"""One machine's agent on real processes, and the watcher that judges what agents tell."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagleray.watchdog.agent import NodeAgent
from eagleray.watchdog.config import WatchdogConfig
from eagleray.watchdog.heartbeat import HeartbeatFile
from eagleray.watchdog.snapshots import flight_stem
from eagleray.watchdog.telemetry import RankRecord
from eagleray.watchdog.watcher import Watcher
from tests.unit.watchdog.story import Story

RANK = (
    "import sys, time, psutil; from pathlib import Path;"
    "from eagleray.watchdog.heartbeat import HeartbeatFile;"
    "started = psutil.Process().create_time();"
    "h = HeartbeatFile(Path(sys.argv[1]), int(sys.argv[2]), started_s=started); h.enter('forward');"
    "print('ready', flush=True); time.sleep(60)"
)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes with heartbeats."""
    environment = os.environ | {"PYTHONPATH": "platform"}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path), str(rank)], stdout=subprocess.PIPE, env=environment
        )
        for rank in range(2)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    yield children
    for child in children:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_an_agent_tells_of_its_ranks_and_ends_them_even_when_stopped(
    ranks: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    agent = NodeAgent(tmp_path)
    assert [(r.rank, r.phase, r.process_alive) for r in agent.look()] == [
        (0, "forward", True),
        (1, "forward", True),
    ]
    ranks[1].send_signal(signal.SIGSTOP)
    assert agent.end_ranks() == [0, 1]
    assert [child.wait(10) for child in ranks] == [-signal.SIGKILL] * 2
    assert [record.process_alive for record in agent.look()] == [False, False]
    assert agent.end_ranks() == []


def test_a_process_that_took_over_a_pid_is_left_alone(
    ranks: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    HeartbeatFile(tmp_path, 2, started_s=1.0)
    assert NodeAgent(tmp_path).end_ranks() == [0, 1]


class FlightRecorder(threading.Thread):
    """Does what NCCL's monitor does: opens a pipe, and writes records when something is written to it."""

    def __init__(self, stem: Path, rank: int):
        super().__init__(daemon=True)
        self._records = Path(f"{stem}{rank}")
        pipe = f"{stem}{rank}.pipe"
        os.mkfifo(pipe)
        self._descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def run(self) -> None:
        while not self._asked():
            time.sleep(0.01)
        self._records.write_bytes(b"trace")

    def _asked(self) -> bytes:
        try:
            return os.read(self._descriptor, 128)
        except BlockingIOError:
            return b""


def test_flight_records_are_asked_for_and_kept_and_cleared_with_the_heartbeats(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    os.mkfifo(f"{flight_stem(folder)}1.pipe")  # of a rank that is gone: nobody reads it
    FlightRecorder(flight_stem(folder), 0).start()
    agent = NodeAgent(folder)
    assert agent.attachments()["nccl-0"] == b"trace"
    agent.clear()
    assert list(tmp_path.iterdir()) == []
    assert agent.look() == ()


def test_only_what_other_attempts_of_the_run_left_is_removed(tmp_path: Path) -> None:
    for name in ("run-1", "run-2", "other-1"):
        (tmp_path / name).mkdir()
        Path(f"{flight_stem(tmp_path / name)}0").write_bytes(b"trace")
    NodeAgent(tmp_path / "run-2").forget_others()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "other-1",
        "other-1.nccl-0",
        "run-2",
        "run-2.nccl-0",
    ]


def test_what_programs_of_the_machine_say_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia-smi", "ncclras"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho {name} said $1")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    kept = NodeAgent(tmp_path / "run").attachments()
    assert sorted(kept.values()) == [b"ncclras said -v\n", b"nvidia-smi said -q\n"]


def test_nothing_is_judged_before_every_rank_was_heard_of() -> None:
    watcher = Watcher(2, WatchdogConfig())
    for second in range(2000):
        assert watcher.observe([RankRecord(rank=0, time_s=float(second))]) == ()


def test_a_watcher_judges_until_a_verdict_ends_the_attempt_and_keeps_the_last_records() -> None:
    config = WatchdogConfig(keep_s=30)
    story = Story(config=config.detector)
    story.run(40)
    story.stand(90, story.freeze(3))
    watcher = Watcher(4, config)
    verdicts = [verdict for records in story.told for verdict in watcher.observe(records)]
    assert [(verdict.kind, verdict.ends_attempt) for verdict in verdicts] == [
        ("collective_hang", False),
        ("collective_hang", True),
    ]
    assert watcher.ending == verdicts[-1]
    ended_at = next(
        n for n, records in enumerate(story.told) if records[0].time_s == verdicts[-1].time_s - 3e5
    )
    assert [list(second) for second in watcher.seconds] == story.told[ended_at - 29 : ended_at + 1]
    assert {reading.rank for reading in watcher.readings()} == {None, 0, 1, 2, 3}


def test_a_hang_that_another_layer_ended_is_taken_over_with_what_was_known_of_it() -> None:
    config = WatchdogConfig()
    story = Story(config=config.detector)
    story.run(40)
    story.stand(20, story.freeze(3))
    watcher = Watcher(4, config)
    verdicts = [verdict for records in story.told for verdict in watcher.observe(records)]
    ending = watcher.take_over("Ray's detector over NCCL: no progress")
    assert ending is not None
    assert (ending.kind, ending.culprit, ending.ends_attempt) == ("collective_hang", 3, True)
    assert ending.evidence == ("Ray's detector over NCCL: no progress", *verdicts[-1].evidence)
    assert watcher.take_over("again") is None
