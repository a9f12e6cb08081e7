"""Training through Ray with every backend, moved between them, and begun from another run's weights."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagleray.training.metrics_log import MetricsLog
from tests.e2e.conftest import TINY, Job

EAGLE3 = "drafters.eagle3.training"
ADAMW = (f"{EAGLE3}.optimizer=adamw", f"{EAGLE3}.learning_rate=2e-3", f"{EAGLE3}.parity_gate=false")
FSDP = f"{EAGLE3}.backend=fsdp"
ZERO = (f"{EAGLE3}.backend=deepspeed", f"{EAGLE3}.zero.stage=3")


@pytest.fixture
def train(distilled: Path, tmp_path: Path) -> Callable[..., Job]:
    """Starts training eagle3 in a copy of that run."""

    def start(name: str, *overrides: str) -> Job:
        if not (tmp_path / name).exists():
            shutil.copytree(distilled, tmp_path / name)
        return Job(
            tmp_path / name,
            "jobs.train",
            *("--recipe", "configs/demo.yaml", "--drafter", "eagle3"),
            *TINY,
            *ADAMW,
            *overrides,
        )

    return start


def metrics(job: Job) -> list[dict[str, Any]]:
    return MetricsLog(job.run / "training" / "eagle3" / "metrics.jsonl").read()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_run_killed_under_one_backend_goes_on_under_others(train: Callable[..., Job]) -> None:
    straight = train("straight")
    assert straight.wait(400) == 0, straight.output()[-4000:]
    moved = train("moved", FSDP)
    moved.wait_for(lambda: list((moved.run / "training" / "eagle3").glob("step-*/complete.json")), 400)
    moved.kill()
    moved = train("moved", *ZERO, f"{EAGLE3}.workers=1")
    assert moved.wait(400) == 0, moved.output()[-4000:]
    wanted, found = metrics(straight), metrics(moved)
    assert [row["step"] for row in found] == [row["step"] for row in wanted]
    assert [row["supervised_tokens"] for row in found] == [row["supervised_tokens"] for row in wanted]
    assert [row["loss"] for row in found] == pytest.approx([row["loss"] for row in wanted], rel=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_features_streamed_beside_the_trainer_and_from_disk_make_the_same_training(
    train: Callable[..., Job],
) -> None:
    found = {}
    for mode in ("colocated", "streamed"):
        job = train(mode, f"{EAGLE3}.features={mode}")
        assert job.wait(400) == 0, job.output()[-4000:]
        found[mode] = metrics(job)
    job = train("stored")
    assert job.wait(400) == 0, job.output()[-4000:]
    found["stored"] = metrics(job)
    for name in ("step", "supervised_tokens", "loss", "replay_tau"):
        streamed, colocated = (
            [row[name] for row in found[mode] if name in row] for mode in ("streamed", "colocated")
        )
        assert streamed == pytest.approx(colocated, rel=1e-6), name
    losses = {mode: [row["loss"] for row in rows] for mode, rows in found.items()}
    # The store rounds to bfloat16.
    assert losses["stored"] == pytest.approx(losses["colocated"], rel=2e-2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_target_process_that_dies_is_replaced_and_costs_no_attempt(train: Callable[..., Job]) -> None:
    job = train("bereft", f"{EAGLE3}.features=streamed", f"{EAGLE3}.epochs=20", f"{EAGLE3}.max_steps=30")
    job.wait_for(lambda: list((job.run / "training" / "eagle3").glob("step-*/complete.json")), 400)
    (target,) = job.processes("ray::MapWorker")
    target.kill()
    assert job.wait(400) == 0, job.output()[-4000:]
    assert "Attempt 1" not in job.output()
    assert [row["step"] for row in metrics(job)] == list(range(1, 31))


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_drafter_is_trained_on_from_its_weights_and_random_ones_are_refused(
    train: Callable[..., Job],
) -> None:
    first = train("first", FSDP, f"{EAGLE3}.epochs=8")
    assert first.wait(400) == 0, first.output()[-4000:]
    exported = first.run / "drafters" / "eagle3"
    profile = json.loads((exported / "speculation_profile.json").read_text())
    begin = f"{EAGLE3}.start={{how: warm_start, drafter: %s}}"
    again = train("again", FSDP, begin % exported)
    assert again.wait(400) == 0, again.output()[-4000:]
    rates = [row["learning_rate"] for row in metrics(again)]
    assert rates[0] == max(rates) == max(row["learning_rate"] for row in metrics(first))
    assert metrics(again)[0]["loss"] < profile["training_loss"] + 0.5
    shuffled = first.run / "drafters" / "shuffled"
    shutil.copytree(exported, shuffled)
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(tensor.shape, generator=generator) / 32 if tensor.ndim == 2 else tensor
        for name, tensor in load_file(exported / "model.safetensors").items()
    }
    save_file(weights, shuffled / "model.safetensors")
    refused = train("refused", FSDP, begin % shuffled)
    assert refused.wait(400) != 0
    assert "random weights have about" in refused.output()
