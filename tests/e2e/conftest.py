"""Driving jobs as a person would: as processes, on the real target, with tiny budgets."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]

TINY = (
    "prompts.train=[{kind: family, name: code, count: 12, seed: 1}, "
    "{kind: family, name: arithmetic, count: 12, seed: 1}]",
    "prompts.held_out=[{kind: family, name: code, count: 2, seed: 2}, "
    "{kind: family, name: arithmetic, count: 2, seed: 2}]",
    "distil.max_new_tokens=24",
    "distil.rows_per_shard=4",
    *(
        f"drafters.{label}.training.{setting}"
        for label in ("eagle3", "dflash")
        for setting in ("epochs=2", "global_batch_size=4", "micro_batch_size=2", "checkpoint_every_steps=2")
    ),
    "evaluation.depths={eagle3: [3], dflash: [3], prompt_lookup: [3]}",
    "evaluation.max_new_tokens=24",
    "evaluation.timing_new_tokens=12",
    "evaluation.timing_prompts_per_family=1",
    "evaluation.concurrencies=[2]",
    "evaluation.groups_per_concurrency=1",
    "evaluation.sampled_answers=0",
    "evaluation.hf_prompts=1",
)
"""Overrides that shrink the demo recipe to about a minute; nothing of it is left out."""


class Job:
    """A job running as a process of its own.

    Args:
        cluster: Address of a Ray to join; None: it starts one.
    """

    def __init__(self, run_root: Path, *arguments: str, cluster: str | None = None):
        self.run = run_root / "demo"
        self.log = run_root / "log.txt"
        run_root.mkdir(parents=True, exist_ok=True)
        self._stream = self.log.open("ab")
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        if cluster is not None:
            environment["RAY_ADDRESS"] = cluster
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments, f"run.root={run_root}"],
            cwd=ROOT,
            env=environment,
            stdout=self._stream,
            stderr=subprocess.STDOUT,
        )

    def wait(self, timeout_s: float = 300) -> int:
        """Exit status of the job."""
        try:
            return self.process.wait(timeout_s)
        finally:
            self._stream.close()

    def wait_for(self, condition: Callable[[], object], timeout_s: float = 240) -> None:
        """Return once `condition` holds; fail if the job ends or time runs out before."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, f"the job ended early:\n{self.output()[-4000:]}"
            assert time.monotonic() < deadline_s, f"waited {timeout_s} s in vain:\n{self.output()[-4000:]}"
            time.sleep(0.05)

    def processes(self, name: str) -> list[psutil.Process]:
        """The job's descendants whose command line contains `name`."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if name in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def kill(self) -> None:
        """`kill -9` of the driver, then wait until what it had started is gone too."""
        descendants = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.wait()
        _, alive = psutil.wait_procs(descendants, timeout=3)
        for process in alive:
            process.kill()

    def output(self) -> str:
        """Everything the job printed so far."""
        return self.log.read_text(errors="replace")


@pytest.fixture(scope="session")
def distilled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run root whose run has its dataset, to be copied and trained from again and again."""
    root = tmp_path_factory.mktemp("distilled")
    job = Job(root, "jobs.distil", "--recipe", "configs/demo.yaml", *TINY)
    assert job.wait() == 0, job.output()[-4000:]
    return root


@pytest.fixture
def start_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Starts jobs in one run root and leaves none behind."""
    jobs: list[Job] = []

    def start(*arguments: str) -> Job:
        jobs.append(Job(tmp_path / "runs", *arguments))
        return jobs[-1]

    yield start
    for job in jobs:
        if job.process.poll() is None:
            job.kill()
