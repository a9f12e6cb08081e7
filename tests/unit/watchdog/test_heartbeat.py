"""Heartbeats: cheap to write, whole to read, and there after death."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from eagleray.errors import ArtifactError
from eagleray.watchdog import heartbeat as heartbeat_module
from eagleray.watchdog.heartbeat import HeartbeatFile, HeartbeatFolder
from eagleray.watchdog.telemetry import RankRecord


@pytest.fixture
def heartbeat(tmp_path: Path) -> HeartbeatFile:
    return HeartbeatFile(tmp_path, 3, started_s=psutil.Process().create_time(), device_uuid="GPU-7")


def only(folder: Path) -> RankRecord:
    (record,) = HeartbeatFolder(folder).read(time.monotonic())
    return record


def test_a_rank_begins_in_init_and_has_taken_no_step(heartbeat: HeartbeatFile, tmp_path: Path) -> None:
    record = only(tmp_path)
    assert (record.rank, record.phase, record.step) == (3, "init", 0)
    assert record.optimizer_step_time_s is None
    assert record.finished is False


def test_the_folder_tells_who_runs_where(heartbeat: HeartbeatFile, tmp_path: Path) -> None:
    (process,) = HeartbeatFolder(tmp_path).processes()
    assert (process.rank, process.pid, process.device_uuid) == (3, os.getpid(), "GPU-7")
    assert process.started_s == pytest.approx(psutil.Process().create_time(), abs=0.01)


def test_waiting_and_loading_are_counted_apart_from_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([10.0, 11.0, 13.0, 17.0, 25.0, 25.5])
    monkeypatch.setattr(heartbeat_module.time, "monotonic", lambda: next(clock))
    heartbeat = HeartbeatFile(tmp_path, 0, started_s=1.0)
    heartbeat.enter("data")
    heartbeat.enter("forward")
    heartbeat.enter_collective()
    heartbeat.enter("optimizer")
    heartbeat.stepped(1)
    (record,) = HeartbeatFolder(tmp_path).read(26.0)
    assert record.data_s == 2.0
    assert record.waited_s == 8.0
    assert record.collectives_entered == 1
    assert record.beat_time_s == 25.5
    assert record.optimizer_step_time_s == record.beat_time_s


def test_a_failed_allocation_is_counted_and_is_no_sign_of_life(
    heartbeat: HeartbeatFile, tmp_path: Path
) -> None:
    before = only(tmp_path)
    heartbeat.count_oom()
    heartbeat.tell_allocator(ooms=2, retries=5, reserved_bytes=7, peak_bytes=6)
    after = only(tmp_path)
    assert after.beat_time_s == before.beat_time_s
    assert (before.oom_count, after.oom_count) == (0, 3)
    assert before.alloc_retry_count is None
    assert (after.alloc_retry_count, after.device_reserved_bytes, after.device_peak_bytes) == (5, 7, 6)


def test_readers_never_see_half_a_write(heartbeat: HeartbeatFile, tmp_path: Path) -> None:
    """`stepped(n)` and the entries are written as equal numbers; a torn read would tell them apart."""
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            heartbeat.enter_collective()
            heartbeat._step = heartbeat._collectives + 1

    heartbeat._step = 1
    writer = threading.Thread(target=write)
    writer.start()
    try:
        records = [only(tmp_path) for _ in range(300)]
    finally:
        ended.set()
        writer.join()
    assert len({record.step for record in records}) > 1
    assert {(r.step or 0) - (r.collectives_entered or 0) for r in records} <= {0, 1}


def test_a_rank_killed_in_the_middle_of_a_phase_leaves_its_last_word(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path;"
        "from eagleray.watchdog.heartbeat import HeartbeatFile;"
        "h = HeartbeatFile(Path(sys.argv[1]), 0, started_s=1.0); h.stepped(4); h.enter('backward');"
        "print('ready', flush=True); time.sleep(60)"
    )
    environment = os.environ | {"PYTHONPATH": "platform"}
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, env=environment
    )
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    record = only(tmp_path)
    assert (record.step, record.phase) == (4, "backward")


def test_an_attempt_overwrites_the_heartbeat_of_the_one_before(
    heartbeat: HeartbeatFile, tmp_path: Path
) -> None:
    heartbeat.stepped(9)
    HeartbeatFile(tmp_path, 3, started_s=1.0)
    assert only(tmp_path).step == 0


def test_a_file_of_another_version_is_refused(heartbeat: HeartbeatFile, tmp_path: Path) -> None:
    path = tmp_path / "3.heartbeat"
    path.write_bytes(b"EAGLEHB0" + path.read_bytes()[8:])
    with pytest.raises(ArtifactError, match="another version"):
        HeartbeatFolder(tmp_path).processes()
