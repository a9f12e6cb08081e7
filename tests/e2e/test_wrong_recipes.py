"""A wrong recipe costs seconds and one paragraph, before any cluster work."""

from collections.abc import Callable
from pathlib import Path

import pytest

DEMO = ("jobs.pipeline", "--recipe", "configs/demo.yaml")

WRONG = {
    "unknown key": (["distil.max_new_tokenz=5"], 2, ["distil.max_new_tokenz", "unknown key"]),
    "missing prompts file": (
        ["prompts.train=[{kind: files, path: nowhere.jsonl, category: code}]"],
        3,
        ["nowhere.jsonl", "cannot be read"],
    ),
    "feature layer 99": (
        ["drafters.eagle3.drafter.target_layer_ids=[1, 14, 99]"],
        2,
        ["99", "from 0 to 29", "drafters.eagle3.drafter.target_layer_ids"],
    ),
    "max length below the prompts": (
        ["drafters.dflash.training.max_length=16"],
        3,
        ["16", "drafters.dflash.training.max_length"],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_recipe_gives_one_clear_paragraph(case: str, start_job: Callable, tmp_path: Path) -> None:
    overrides, exit_code, words = WRONG[case]
    job = start_job(*DEMO, *overrides)
    assert job.wait() == exit_code
    output = job.output()
    for word in words:
        assert word in output
    assert "Traceback" not in output
    paragraphs = [line for line in output.splitlines() if "Error:" in line]
    assert len(paragraphs) == 1
    assert not (job.run / "stages").exists(), "cluster work had begun"


def test_help_explains_every_job(start_job: Callable) -> None:
    for name in ("pipeline", "distil", "train", "evaluate"):
        job = start_job(f"jobs.{name}", "--help")
        job.wait()
    assert job.output().count("--recipe") >= 4
