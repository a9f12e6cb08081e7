"""Killed at any stage and started again, a run loses nothing and doubles nothing."""

import json
from collections.abc import Callable
from pathlib import Path

from eagleray.corpus.dataset import read_dataset
from eagleray.corpus.manifest import read_manifest
from eagleray.corpus.storage import LocalFolder
from tests.e2e.conftest import TINY, Job

DEMO = ("jobs.pipeline", "--recipe", "configs/demo.yaml", *TINY)


def published_shards(run: Path) -> int:
    dataset = LocalFolder(run / "dataset")
    return len(read_manifest(dataset).shards) if dataset.exists("manifest.json") else 0


def test_kills_at_three_stages_leave_the_dataset_and_report_of_an_undisturbed_run(
    start_job: Callable[..., Job], tmp_path: Path
) -> None:
    demo = (*DEMO, f"drafters.eagle3.training.mirror=file://{tmp_path}/mirror")
    job = start_job(*demo)
    job.wait_for(lambda: published_shards(job.run) >= 2)
    job.kill()
    before = {path.name: path.read_bytes() for path in (job.run / "dataset").glob("*.parquet")}
    kept = read_manifest(LocalFolder(job.run / "dataset")).shards

    job = start_job(*demo)
    checkpoints = job.run / "training" / "eagle3"
    job.wait_for(lambda: list(checkpoints.glob("step-*")))
    worker = job.processes("RayTrainWorker")[0]
    worker.kill()
    job.wait_for(lambda: (job.run / "training" / "dflash").exists())
    job.kill()

    job = start_job(*demo)
    job.wait_for(lambda: list((job.run / "evaluation").glob("*.json")))
    job.kill()

    job = start_job(*demo)
    assert job.wait() == 0, job.output()[-4000:]
    manifest, samples = read_dataset(LocalFolder(job.run / "dataset"))
    ids = [sample.sample_id for sample in samples]
    assert len(ids) == len(set(ids)) == 24 - manifest.rejected_rows
    for record in kept.values():
        path = job.run / "dataset" / record.file
        assert path.read_bytes() == before[record.file], "a finished shard was made again"
    report = json.loads((job.run / "report.json").read_text())
    assert set(report["drafters"]) == {"eagle3", "dflash", "prompt_lookup"}
    for drafter in report["drafters"].values():
        assert {family["greedy_exact_ratio"] for family in drafter["families"].values()} == {1.0}
    mirrored = tmp_path / "mirror" / "demo" / "eagle3"
    assert {path.name for path in mirrored.iterdir()} == {path.name for path in checkpoints.glob("step-*")}
    assert (job.run / "report.html").stat().st_size > 10_000
