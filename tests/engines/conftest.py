"""Drafters that are trained once, for every test that serves one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def parity_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of configs/parity.yaml; `runs/bench/parity.json` was made with it."""
    root = tmp_path_factory.mktemp("parity")
    command = ["-m", "jobs.bench_parity", "--recipe", "configs/parity.yaml", f"run.root={root}"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    result = subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=False)
    assert result.returncode == 0
    return root / "parity"


@pytest.fixture(scope="session")
def eagle3(parity_run: Path) -> Path:
    """An exported drafter of the embedded target."""
    return parity_run / "drafters" / "eagle3"
