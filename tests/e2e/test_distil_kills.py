"""Killed at random instants and started again, distilling makes the dataset of a run that nobody disturbed.

Answers are replayed, so that nearly all of the time goes into what is under test: reading prompts, making
shards, publishing them, folding the journal.
"""

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from eagleray.corpus.dataset import read_dataset
from eagleray.corpus.manifest import read_manifest
from eagleray.corpus.sample import Sample
from eagleray.corpus.storage import LocalFolder
from tests.e2e.conftest import Job

PROMPTS = 2000
ROWS_PER_SHARD = 4
WORKER = "MapWorker(FlatMap(DistilActor))"

StartJob = Callable[..., Job]


@pytest.fixture(scope="module")
def distil(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Arguments of a job that distils 2,000 prompts from files, one of them twice and one of them broken."""
    tmp_path = tmp_path_factory.mktemp("inputs")
    chance = random.Random(0)
    with (tmp_path / "prompts.jsonl").open("w") as stream:
        for number in range(PROMPTS - 1):
            stream.write(
                json.dumps({"prompt": f"Question {number}: " + "why " * chance.randrange(30)}) + "\n"
            )
        stream.write('{"prompt": "question 0:  why"}\n{"prompt": 7}\n')
    with (tmp_path / "answers.jsonl").open("w") as stream:
        for _ in range(40):
            ids = [chance.randrange(100, 40_000) for _ in range(chance.randrange(4, 60))]
            stream.write(json.dumps({"prompt_ids": ids[:3], "answer_ids": [*ids, 2]}) + "\n")
    return (
        "jobs.distil",
        "--recipe",
        "configs/demo.yaml",
        f"prompts.train=[{{kind: files, path: {tmp_path}/prompts.jsonl}}]",
        "prompts.held_out=[{kind: family, name: code, count: 2, seed: 2}]",
        f"distil.rows_per_shard={ROWS_PER_SHARD}",
        "distil.window_prompts=300",
        "distil.capture_features=false",
        "drafters.eagle3.training.features=colocated",
        "drafters.dflash.training.features=colocated",
        f"distil.engine={{name: replay, source: {tmp_path}/answers.jsonl, unknown_prompts: cycle}}",
    )


def dataset_of(run: Path) -> LocalFolder:
    return LocalFolder(run / "dataset")


def published(run: Path) -> int:
    dataset = dataset_of(run)
    return len(read_manifest(dataset).shards) if dataset.exists("manifest.json") else 0


def sorted_samples(run: Path) -> list[Sample]:
    return sorted(read_dataset(dataset_of(run))[1], key=lambda sample: sample.sample_id)


@pytest.fixture(scope="module")
def undisturbed(distil: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    job = Job(tmp_path_factory.mktemp("undisturbed"), *distil)
    assert job.wait() == 0, job.output()[-4000:]
    return sorted_samples(job.run)


def kill_at_random(start_job: StartJob, distil: tuple[str, ...], kills: int, seed: int) -> Path:
    """Kill the job `kills` times: some time after its start, or soon after it published something."""
    chance = random.Random(seed)
    for _ in range(kills):
        job = start_job(*distil)
        before = published(job.run)
        if chance.random() < 0.3:
            wait_s = chance.uniform(0.0, 20.0)
        else:
            job.wait_for(lambda run=job.run, seen=before: published(run) > seen or complete(run))
            wait_s = chance.uniform(0.0, 1.0)
        try:
            job.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            job.kill()
    job = start_job(*distil)
    assert job.wait() == 0, job.output()[-4000:]
    return job.run


def complete(run: Path) -> bool:
    dataset = dataset_of(run)
    return dataset.exists("manifest.json") and read_manifest(dataset).complete


def require_same(run: Path, expected: list[Sample]) -> None:
    found = sorted_samples(run)
    assert [sample.sample_id for sample in found] == [sample.sample_id for sample in expected]
    assert found == expected
    manifest = read_manifest(dataset_of(run))
    assert len(found) + manifest.rejected_rows == manifest.planned_rows
    assert dataset_of(run).names("journal") == []
    leftovers = [path.name for path in (run / "dataset").rglob(".*")]
    assert leftovers == [], "half-written files of killed writers are still there"


@pytest.mark.timeout(1200)
def test_a_killed_job_and_a_killed_worker_lose_and_double_nothing(
    start_job: StartJob, distil: tuple[str, ...], undisturbed: list[Sample]
) -> None:
    """S1: after a resume every id is there once, what was finished is as it was; a rerun makes nothing."""
    job = start_job(*distil)
    job.wait_for(lambda: published(job.run) >= 20)
    job.kill()
    finished = {name: dataset_of(job.run).read(name) for name in dataset_of(job.run).names()}
    kept = [record.file for record in read_manifest(dataset_of(job.run)).shards.values()]

    job = start_job(*distil)
    job.wait_for(lambda: published(job.run) >= 120)
    worker = job.processes(WORKER)[0]
    worker.kill()
    assert job.wait() == 0, job.output()[-4000:]
    require_same(job.run, undisturbed)
    assert all(dataset_of(job.run).read(name) == finished[name] for name in kept)

    inodes = {path: path.stat().st_ino for path in (job.run / "dataset").iterdir()}
    job = start_job(*distil)
    assert job.wait() == 0, job.output()[-4000:]
    assert {path: path.stat().st_ino for path in (job.run / "dataset").iterdir()} == inodes


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_kills_at_random_instants_change_nothing(
    start_job: StartJob, distil: tuple[str, ...], undisturbed: list[Sample]
) -> None:
    require_same(kill_at_random(start_job, distil, kills=20, seed=20), undisturbed)
