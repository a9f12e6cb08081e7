"""Ranks that really hang, block, stop and die: seen from outside, blamed rightly, and the run finished.

The faults are those of `faults/sitecustomize.py`; production code has no door for them.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from eagleray.training.metrics_log import MetricsLog
from tests.e2e.conftest import ROOT, TINY, Job

FAULTS = Path(__file__).parent / "faults"
CULPRIT = 1
STEP = 7
"""Not the step of a checkpoint, so that the next attempt repeats one."""
RECIPE = ("--recipe", "configs/demo.yaml", *TINY)
EXPECTED = {
    "oom": "oom_hang",
    "sleep": "collective_hang",
    "stop": "collective_hang",
    "data": "data_starved",
    "die": "dead_rank",
}


@pytest.fixture(scope="module")
def distilled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has its dataset, to train from again and again."""
    root = tmp_path_factory.mktemp("distilled")
    job = Job(root, "jobs.distil", *RECIPE)
    assert job.wait() == 0, job.output()[-4000:]
    return root


def train(distilled: Path, root: Path, monkeypatch: pytest.MonkeyPatch, fault: str | None) -> Job:
    """Train in a copy of the run, with the fault in one rank of its first attempt."""
    shutil.copytree(distilled, root)
    if fault is not None:
        settings = {"FAULT": fault, "FAULT_RANK": CULPRIT, "FAULT_STEP": STEP, "FAULT_MARK": root / "mark"}
        for name, value in settings.items():
            monkeypatch.setenv(name, str(value))
        paths = [str(FAULTS), str(ROOT / "platform"), os.environ.get("PYTHONPATH", "")]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    job = Job(root, "jobs.train", *RECIPE, "--drafter", "eagle3")
    assert job.wait(480) == 0, job.output()[-4000:]
    return job


def metrics(job: Job) -> list[dict[str, Any]]:
    """Every step once; of a step that was repeated, the one that counted."""
    return MetricsLog(job.run / "training" / "eagle3" / "metrics.jsonl").read()


@pytest.fixture(scope="module")
def undisturbed(distilled: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        job = train(distilled, tmp_path_factory.mktemp("undisturbed") / "runs", monkeypatch, None)
    assert not (job.run / "incidents").exists()
    return metrics(job)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("fault", EXPECTED)
def test_a_fault_is_seen_blamed_kept_and_survived(
    fault: str,
    distilled: Path,
    undisturbed: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = train(distilled, tmp_path / "runs", monkeypatch, fault)
    ending = [
        (place, verdict)
        for place in sorted((job.run / "incidents").iterdir())
        if (verdict := json.loads((place / "verdict.json").read_text()))["ends_attempt"]
    ]
    assert [(verdict["kind"], verdict["culprit"]) for _, verdict in ending] == [(EXPECTED[fault], CULPRIT)]
    place = ending[0][0]
    fault_at_s = float((tmp_path / "runs" / "mark").read_text())
    print(f"{fault}: verdict after {(place / 'records.jsonl').stat().st_mtime - fault_at_s:.1f} s")
    page = (place / "summary.md").read_text()
    assert f"rank {CULPRIT} (ended the attempt)" in page
    if fault in ("oom", "sleep", "stop", "data"):
        assert "sitecustomize.py" in (place / "stacks" / f"{CULPRIT}.txt").read_text()
    trained = metrics(job)
    assert [row["step"] for row in trained] == [row["step"] for row in undisturbed]
    assert [row["supervised_tokens"] for row in trained] == [row["supervised_tokens"] for row in undisturbed]
    assert [row["loss"] for row in trained] == pytest.approx([row["loss"] for row in undisturbed], rel=1e-5)
