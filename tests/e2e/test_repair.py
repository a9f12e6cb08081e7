"""Damage on disk is refused, repaired by making only that again, and leaves the bytes as they were."""

from collections.abc import Callable
from pathlib import Path

from tests.e2e.conftest import TINY, Job


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_flipped_bit_costs_one_shard(start_job: Callable[..., Job]) -> None:
    recipe = ("--recipe", "configs/demo.yaml", *TINY)
    job = start_job("jobs.distil", *recipe)
    assert job.wait() == 0, job.output()[-4000:]
    dataset = job.run / "dataset"
    before = {path.name: path.read_bytes() for path in dataset.glob("*.parquet")}
    damaged = dataset / "shard-000002.parquet"
    inodes = {path.name: path.stat().st_ino for path in dataset.glob("*.parquet")}
    flip(damaged)
    flip(dataset / "manifest.json")

    job = start_job("jobs.train", *recipe, "--drafter", "eagle3")
    assert job.wait() == 3
    assert "manifest.json is damaged" in job.output()
    job = start_job("jobs.distil", *recipe, "--repair")
    assert job.wait() == 0, job.output()[-4000:]
    assert "1 manifests, 1 shards and 0 feature files were damaged" in job.output()
    assert {path.name: path.read_bytes() for path in dataset.glob("*.parquet")} == before
    remade = [name for name, inode in inodes.items() if (dataset / name).stat().st_ino != inode]
    assert remade == [damaged.name]
    assert {path.name for path in (dataset / "quarantine").iterdir()} == {
        "manifest.json.1",
        "shard-000002.parquet.1",
    }
