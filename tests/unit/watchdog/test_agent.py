"""One machine's agent on real processes, and the watcher that judges what agents tell."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagleray.watchdog.agent import FLIGHT_RECORDER, NodeAgent
from eagleray.watchdog.config import WatchdogConfig
from eagleray.watchdog.heartbeat import HeartbeatFile
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


def test_flight_records_are_kept_and_the_folder_is_cleared(tmp_path: Path) -> None:
    folder = tmp_path / "attempt"
    folder.mkdir()
    (folder / f"{FLIGHT_RECORDER}0").write_bytes(b"trace")
    agent = NodeAgent(folder)
    assert agent.attachments()[f"{FLIGHT_RECORDER}0"] == b"trace"
    agent.clear()
    assert not folder.exists()
    assert agent.look() == ()


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
