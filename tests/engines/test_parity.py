"""What the exported folders are worth in vLLM: as much as in our engine, and there as much as in replay."""

import json
from pathlib import Path

import pytest

from jobs.bench import Bench

ROOT = Path(__file__).parents[2]
SERVED = ("eagle3", "dflash", "medusa", "eagle", "mtp")
"""Drafters that vLLM serves on CPUs."""
DRAFTERS = (*SERVED, "dflash2")


@pytest.fixture(scope="module")
def bench(parity_run: Path) -> Bench:
    """`runs/bench/parity.json`, made now."""
    return Bench.model_validate(json.loads((ROOT / "runs" / "bench" / "parity.json").read_text()))


@pytest.mark.engine
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_three_measures_of_tau_agree(bench: Bench, drafter: str) -> None:
    figures = {
        name.removeprefix(f"{drafter}."): figure
        for name, figure in bench.figures.items()
        if name.startswith(f"{drafter}.")
    }
    assert figures["native_tau"].n >= 40
    # Drafts that are never right would agree by doing nothing.
    assert figures["native_tau"].value > 1.3
    assert figures["replay_same_cycles_ratio"].value == 1.0
    assert figures["replay_vs_native_tau_ratio"].value == 1.0
    assert figures["greedy_exact_ratio"].value == 1.0
    if drafter in SERVED:
        assert figures["vllm_vs_native_tau_ratio"].value == pytest.approx(1.0, abs=0.02)
