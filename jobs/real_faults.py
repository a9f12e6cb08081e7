"""Trainings in which ranks really fail, and what the watchdog made of it.

The faults are in `jobs/faults/sitecustomize.py`, which a process finds on its path: production code has no
door for them.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagleray.corpus.dataset import read_dataset
from eagleray.corpus.storage import LocalFolder
from eagleray.errors import ClusterError
from eagleray.recipe.loading import load_recipe
from eagleray.training.held_out import keep_out
from eagleray.training.metrics_log import MetricsLog
from eagleray.training.rows import TrainingRows

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "configs" / "demo.yaml"
LABEL = "eagle3"
CULPRIT = 1
STEP = 7
"""Not the step of a checkpoint, so that the next attempt repeats one; late enough to know the job's pace."""
RIGHT_VERDICT = {
    "oom": "oom_hang",
    "sleep": "collective_hang",
    "stop": "collective_hang",
    "data": "data_starved",
    "die": "dead_rank",
}
"""Fault -> the verdict that it deserves."""
SMALL = (
    "prompts.train=[{kind: family, name: code, count: 12, seed: 1}, "
    "{kind: family, name: arithmetic, count: 12, seed: 1}]",
    "prompts.held_out=[{kind: family, name: code, count: 2, seed: 2}]",
    "distil.max_new_tokens=24",
    "distil.rows_per_shard=4",
    *(
        f"drafters.{LABEL}.training.{setting}"
        for setting in (
            "epochs=2",
            "global_batch_size=4",
            "micro_batch_size=2",
            "checkpoint_every_steps=2",
            "parity_gate=false",
        )
    ),
)
"""Overrides that leave ten steps of the demo recipe; its watchdog stays as it is."""
LIMIT_S = 1200.0


@dataclass(frozen=True, kw_only=True)
class Aftermath:
    """What a training with faults left behind."""

    log: str
    incidents: tuple[dict[str, Any], ...]
    """Verdicts by time, each with `place`: the incident's folder, and `after_s`: seconds since the newest
    fault before it."""
    steps: tuple[int, ...]
    supervised_tokens: tuple[int, ...]
    """Seen after each step."""
    trained_length: int
    micro_batch_size: int
    recompute_activations: bool
    """As the attempt had them that came through."""

    def ending(self) -> list[dict[str, Any]]:
        """The verdicts that ended an attempt."""
        return [verdict for verdict in self.incidents if verdict["ends_attempt"]]


def distil(root: Path) -> None:
    """Make the dataset to train from again and again.

    Raises:
        ClusterError: The job failed.
    """
    _run(root, "jobs.distil", {})


def train_with_faults(distilled: Path, root: Path, faults: Sequence[tuple[str, int]]) -> Aftermath:
    """Train in a copy of a run whose dataset is there, one rank failing.

    Args:
        faults: Names and the steps that they hit, each once.

    Raises:
        ClusterError: The job failed.
    """
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(distilled, root)
    marks = root / "marks"
    marks.mkdir()
    environment = {
        "FAULTS": json.dumps(list(faults)),
        "FAULT_RANK": str(CULPRIT),
        "FAULT_MARKS": str(marks),
        "PYTHONPATH": os.pathsep.join(
            filter(None, (str(ROOT / "jobs" / "faults"), os.environ.get("PYTHONPATH")))
        ),
    }
    log = _run(root, "jobs.train", environment, "--drafter", LABEL)
    run = root / "demo"
    metrics = MetricsLog(run / "training" / LABEL / "metrics.jsonl").read()
    facts = json.loads((run / "training" / LABEL / "facts.json").read_text(encoding="utf-8"))
    profile = json.loads((run / "drafters" / LABEL / "speculation_profile.json").read_text(encoding="utf-8"))
    return Aftermath(
        log=log,
        incidents=tuple(_incidents(run, marks)),
        steps=tuple(int(step["step"]) for step in metrics),
        supervised_tokens=tuple(int(step["supervised_tokens"]) for step in metrics),
        trained_length=profile["trained_length"],
        micro_batch_size=facts["micro_batch_size"],
        recompute_activations=facts["recompute_activations"],
    )


def undisturbed_tokens(distilled: Path) -> tuple[int, ...]:
    """Supervised tokens seen after each step of a training in which nothing fails: what its plan says."""
    training = load_recipe(RECIPE, SMALL).drafters[LABEL].training
    samples, _ = keep_out(
        read_dataset(LocalFolder(distilled / "demo" / "dataset"))[1], training.replay_samples
    )
    rows = TrainingRows(samples, training)
    plan = rows.plan()
    seen, total = [], 0
    for step in range(plan.total_steps(training.epochs, training.max_steps)):
        total += sum(rows[index].supervised_tokens for index in plan.global_batch(step))
        seen.append(total)
    return tuple(seen)


def _incidents(run: Path, marks: Path) -> list[dict[str, Any]]:
    struck_s = [float(mark.read_text(encoding="utf-8")) for mark in marks.iterdir()]
    found = []
    for place in sorted((run / "incidents").glob("[0-9]*"), key=lambda place: int(place.name)):
        verdict = json.loads((place / "verdict.json").read_text(encoding="utf-8"))
        # One clock for all processes of a machine.
        after_s = min(verdict["time_s"] - at_s for at_s in struck_s if at_s <= verdict["time_s"])
        found.append(verdict | {"place": str(place), "after_s": after_s})
    return found


def _run(root: Path, job: str, environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", job, "--recipe", str(RECIPE), *SMALL, f"run.root={root}", *arguments]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if result.returncode != 0:
        raise ClusterError(
            f"{job} in {root} ended with {result.returncode}; expected 0. Its last words:\n"
            f"{result.stdout[-4000:]}"
        )
    return result.stdout
