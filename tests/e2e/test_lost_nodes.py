"""A machine is lost in the middle of a training: replaced, done without, or missed too much."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from eagleray.corpus.dataset import read_dataset
from eagleray.corpus.storage import LocalFolder
from eagleray.recipe.loading import load_recipe
from eagleray.training.held_out import keep_out
from eagleray.training.metrics_log import MetricsLog
from eagleray.training.rows import TrainingRows
from tests.e2e.conftest import TINY, Job

EAGLE3 = "drafters.eagle3.training"
STEPS = 40
LONG = (f"{EAGLE3}.epochs=20", f"{EAGLE3}.max_steps={STEPS}", f"{EAGLE3}.parity_gate=false")
QUICK_TO_NOTICE = {"health_check_period_ms": 500, "health_check_failure_threshold": 3}
"""Ray takes a machine for dead after some missed answers; half a minute by default."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A head with the driver and one worker, and another machine for a second one."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    temp = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    head = {"num_cpus": 1, "include_dashboard": False, "temp_dir": temp, "_system_config": QUICK_TO_NOTICE}
    started = Cluster(initialize_head=True, head_node_args=head)
    started.add_node(num_cpus=1)
    yield started
    started.shutdown()
    shutil.rmtree(temp, ignore_errors=True)


@pytest.fixture
def train(distilled: Path, cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Trains in a copy of a run, and returns when a checkpoint is there and the second machine is not."""
    jobs: list[Job] = []

    def start(*overrides: str) -> Job:
        shutil.copytree(distilled, tmp_path / "runs")
        command = ("jobs.train", "--recipe", "configs/demo.yaml", "--drafter", "eagle3")
        job = Job(tmp_path / "runs", *command, *TINY, *LONG, *overrides, cluster=cluster.address)
        jobs.append(job)
        job.wait_for(lambda: list((job.run / "training" / "eagle3").glob("step-*/complete.json")))
        (node,) = cluster.worker_nodes
        cluster.remove_node(node, allow_graceful=False)
        return job

    yield start
    for job in jobs:
        if job.process.poll() is None:
            job.kill()


def check_that_no_sample_is_lost_or_seen_twice(job: Job) -> None:
    training = load_recipe(Path("configs/demo.yaml"), (*TINY, *LONG)).drafters["eagle3"].training
    samples, _ = keep_out(read_dataset(LocalFolder(job.run / "dataset"))[1], training.replay_samples)
    rows = TrainingRows(samples, training)
    plan = rows.plan()
    expected, seen = [], 0
    for step in range(STEPS):
        seen += sum(rows[index].supervised_tokens for index in plan.global_batch(step))
        expected.append(seen)
    log = MetricsLog(job.run / "training" / "eagle3" / "metrics.jsonl").read()
    assert [row["step"] for row in log] == list(range(1, STEPS + 1))
    assert [row["supervised_tokens"] for row in log] == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_machine_that_is_replaced_costs_the_steps_since_the_checkpoint(
    train: Callable[..., Job], cluster: Cluster
) -> None:
    job = train()
    cluster.add_node(num_cpus=1)
    assert job.wait(400) == 0, job.output()[-4000:]
    assert "Attempt 1 of eagle3 ended" in job.output()
    assert "goes on with 1 of 2 workers" not in job.output()
    check_that_no_sample_is_lost_or_seen_twice(job)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_without_a_replacement_the_rest_goes_on_with_the_same_steps(train: Callable[..., Job]) -> None:
    job = train(f"{EAGLE3}.min_workers=1", f"{EAGLE3}.wait_for_machines_s=5")
    assert job.wait(400) == 0, job.output()[-4000:]
    assert "goes on with 1 of 2 workers" in job.output()
    check_that_no_sample_is_lost_or_seen_twice(job)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_with_neither_the_run_ends_in_time_and_says_what_is_missing(train: Callable[..., Job]) -> None:
    job = train(f"{EAGLE3}.wait_for_machines_s=5")
    assert job.wait(400) != 0
    assert "room for 1 of 2 workers" in job.output()
    assert "start the same command again" in job.output()
