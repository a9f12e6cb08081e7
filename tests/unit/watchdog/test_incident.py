"""What is kept of a verdict, and stacks of processes that do not answer."""

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagleray.watchdog import stacks
from eagleray.watchdog.heartbeat import RankProcess
from eagleray.watchdog.incident import Incident, write_incident
from eagleray.watchdog.sources.replay import read_trace
from eagleray.watchdog.stacks import DUMP_SIGNAL, collect_stacks, stack_file
from tests.unit.watchdog.story import Story


@pytest.fixture
def incident() -> Incident:
    story = Story()
    story.run(40)
    story.stand(16, story.freeze(2))
    seconds = [tuple(story.last)] * 30
    return Incident(
        verdict=story.verdicts[-1],
        seconds=seconds,
        stacks={0: "Thread 1: all_reduce", 2: "Thread 1: sleep (fault.py:7)"},
        attachments={"nvidia-smi.txt": b"GPU 0"},
        action="The attempt goes on.",
    )


def test_the_summary_says_what_who_why_and_what_was_done(incident: Incident, tmp_path: Path) -> None:
    page = (write_incident(tmp_path, incident) / "summary.md").read_text()
    assert page.startswith("# Incident 1: collective_hang, rank 2 (warning)")
    for sentence in incident.verdict.evidence:
        assert sentence in page
    assert "The attempt goes on." in page
    assert "fault.py:7" in page
    assert page.index("| 2 |") < page.index("| 0 |")


def test_everything_the_verdict_rests_on_is_kept(incident: Incident, tmp_path: Path) -> None:
    place = write_incident(tmp_path, incident)
    assert read_trace(place / "records.jsonl") == list(incident.seconds)
    assert (place / "stacks" / "2.txt").read_text() == incident.stacks[2]
    assert (place / "attachments" / "nvidia-smi.txt").read_bytes() == b"GPU 0"
    assert json.loads((place / "verdict.json").read_text())["culprit"] == 2
    page = (place / "plot.html").read_text()
    assert page.count("<svg") == 4


def test_incidents_are_numbered_on(incident: Incident, tmp_path: Path) -> None:
    assert [write_incident(tmp_path, incident).name for _ in range(3)] == ["1", "2", "3"]


def test_what_was_not_measured_is_called_missing(incident: Incident, tmp_path: Path) -> None:
    bare = [tuple(type(r)(rank=r.rank, time_s=r.time_s) for r in second) for second in incident.seconds]
    place = write_incident(tmp_path, Incident(**{**incident.__dict__, "seconds": bare}))
    assert "| 2 | missing | missing | missing | missing |" in (place / "summary.md").read_text()
    assert "<svg" not in (place / "plot.html").read_text()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[RankProcess]:
    """A process that hangs in a function of its own, and dumps its stacks when asked."""
    script = (
        "import faulthandler, sys, time\n"
        f"faulthandler.register({int(DUMP_SIGNAL)}, file=open(sys.argv[1], 'w'))\n"
        "def waits_for_a_peer():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "waits_for_a_peer()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(stack_file(tmp_path, 0))], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield RankProcess(rank=0, pid=process.pid, started_s=0.0, device_uuid=None)
    process.kill()
    process.wait()
    process.stdout.close()


def can_spy() -> bool:
    spy = stacks.py_spy()
    if spy is None:
        return False
    probe = subprocess.run([spy, "dump", "--pid", str(os.getpid())], capture_output=True, check=False)
    return probe.returncode == 0


@pytest.mark.skipif(not can_spy(), reason="py-spy may not look at processes here")
@pytest.mark.parametrize("stopped", [False, True])
def test_py_spy_reads_a_hanging_process_and_a_stopped_one(
    child: RankProcess, tmp_path: Path, stopped: bool
) -> None:
    if stopped:
        os.kill(child.pid, signal.SIGSTOP)
    assert "waits_for_a_peer" in collect_stacks([child], tmp_path)[0]


def test_without_py_spy_the_process_dumps_its_own_stacks(
    child: RankProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "py_spy", lambda: None)
    first = collect_stacks([child], tmp_path)[0]
    assert "waits_for_a_peer" in first
    assert collect_stacks([child], tmp_path)[0].count("waits_for_a_peer") == first.count("waits_for_a_peer")


def test_a_process_that_registered_no_handler_is_not_sent_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "py_spy", lambda: None)
    process = RankProcess(rank=0, pid=os.getpid(), started_s=time.time(), device_uuid=None)
    faulthandler.unregister(DUMP_SIGNAL)
    assert collect_stacks([process], tmp_path)[0].startswith("No stacks. py-spy is not installed")
