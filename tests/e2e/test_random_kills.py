"""The long suite: kills at random instants, of the driver or of any process it started."""

import json
import random
import subprocess
from collections.abc import Callable

import pytest

from eagleray.corpus.dataset import read_dataset
from eagleray.corpus.storage import LocalFolder
from tests.e2e.conftest import TINY, Job

KILLS = 12
LONGEST_WAIT_S = 45.0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2))
def test_any_sequence_of_kills_ends_in_a_whole_run(start_job: Callable[..., Job], seed: int) -> None:
    """A killed driver is started again; a killed worker must be survived or end the job cleanly."""
    chance = random.Random(seed)
    command = ("jobs.pipeline", "--recipe", "configs/demo.yaml", *TINY)
    job = start_job(*command)
    for _ in range(KILLS):
        try:
            job.process.wait(chance.uniform(2.0, LONGEST_WAIT_S))
        except subprocess.TimeoutExpired:
            workers = job.processes("ray::")
            if chance.random() < 0.5 and workers:
                chance.choice(workers).kill()
            else:
                job.kill()
        if job.process.poll() is not None:
            job = start_job(*command)
    assert job.wait(900) == 0, job.output()[-4000:]
    manifest, samples = read_dataset(LocalFolder(job.run / "dataset"))
    ids = [sample.sample_id for sample in samples]
    assert len(ids) == len(set(ids)) == 24 - manifest.rejected_rows
    report = json.loads((job.run / "report.json").read_text())
    assert set(report["drafters"]) == {"eagle3", "dflash", "prompt_lookup"}
