"""What the exported folders are worth in SGLang, in the form that it serves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.bench import Bench

ROOT = Path(__file__).parents[2]
SERVED = {
    # SGLang has no reader for the norm's place, and no map for a reduced vocabulary of a block.
    "eagle3": "drafters.eagle3.drafter.norm_before_residual=false",
    "dflash": "drafters.dflash.drafter.draft_vocab_size=null",
}

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """`runs/bench/parity_sglang.json`, made now; SGLANG_ENV names the environment."""
    root = tmp_path_factory.mktemp("parity")
    command = ["-m", "jobs.bench_parity", "--recipe", "configs/parity.yaml", "--engine", "sglang"]
    changes = [f"run.root={root}", *SERVED.values()]
    result = subprocess.run([sys.executable, *command, *changes], cwd=ROOT, check=False)
    assert result.returncode == 0
    return Bench.model_validate(json.loads((ROOT / "runs" / "bench" / "parity_sglang.json").read_text()))


@pytest.mark.parametrize("drafter", SERVED)
def test_sglang_accepts_as_much_as_the_native_engine(bench: Bench, drafter: str) -> None:
    assert bench.figures[f"{drafter}.native_tau"].value > 1.3
    assert bench.figures[f"{drafter}.greedy_exact_ratio"].value == 1.0
    assert bench.figures[f"{drafter}.sglang_vs_native_tau_ratio"].value == pytest.approx(1.0, abs=0.02)
