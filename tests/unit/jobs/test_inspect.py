"""What `python -m jobs.inspect` prints, and that it needs neither Ray nor torch for it."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from typer.testing import CliRunner

from eagleray.corpus.manifest import Manifest
from eagleray.corpus.prompt import Reject
from eagleray.corpus.sample import Sample
from jobs.inspect import app

ROOT = Path(__file__).parents[3]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Writes id n as w<n>."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    Tokenizer(WordLevel({f"w{n}": n for n in range(64)}, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def dataset(tmp_path: Path, sample: Callable[..., Sample], publish: Callable[..., Manifest]) -> Path:
    rows = [sample("aa", 3, 2), sample("bb", 30, 10, category="logs"), sample("cc", 3, 4)]
    publish(tmp_path / "run" / "dataset", [rows], [Reject(origin="x", reason="the prompt has 900 tokens")])
    return tmp_path / "run" / "dataset"


def inspect(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_counts_rejects_truncation_and_marked_samples_are_printed(dataset: Path, tokenizer: Path) -> None:
    code, output = inspect(dataset, "--tokenizer", tokenizer, "--max-length", 20)
    assert code == 0
    assert "4 prompts: 3 answered, 1 rejected; 3 samples" in output
    assert "52 tokens, 16 supervised (30.8%)" in output
    assert "the prompt has N tokens" in output
    assert "cut to 20 tokens, 37.50% of supervised tokens kept" in output
    assert "95 %: 40, 99 %: 40, 100 %: 40" in output
    # Where there are no colours, brackets show what is supervised.
    assert "w0 w1 w2[[w3 w4]]" in output


def test_json_holds_the_same_for_programs(dataset: Path, tokenizer: Path) -> None:
    code, output = inspect(dataset, "--tokenizer", tokenizer, "--json")
    found = json.loads(output)
    assert code == 0
    assert found["complete"] is True
    assert found["summary"]["categories"]["logs"]["rows"] == 1
    assert found["truncation"]["uncut"]["kept_ratio"] == 1.0
    assert found["samples"][0]["segments"] == [
        {"supervised": False, "text": "w0 w1 w2"},
        {"supervised": True, "text": "w3 w4"},
    ]


def test_lengths_come_from_the_run_that_holds_the_dataset(dataset: Path, tokenizer: Path) -> None:
    cuts = {"eagle3": "clip", "dflash": "window"}
    trainings = {label: {"training": {"max_length": 6, "long_samples": cut}} for label, cut in cuts.items()}
    recipe = {"drafters": trainings}
    (dataset.parent / "recipe.json").write_text(json.dumps(recipe))
    found = json.loads(inspect(dataset, "--tokenizer", tokenizer, "--json")[1])
    assert found["truncation"]["eagle3"]["max_length"] == 6
    assert found["truncation"]["eagle3"]["total"]["kept_tokens"] == 2 + 3
    assert found["truncation"]["dflash"]["total"]["kept_tokens"] == 2 + 10 + 4


def test_a_damaged_shard_is_shown_beside_what_is_whole(
    tmp_path: Path, sample: Callable[..., Sample], publish: Callable[..., Manifest], tokenizer: Path
) -> None:
    publish(tmp_path / "data", [[sample("aa")], [sample("bb")]])
    (tmp_path / "data" / "shard-000001.parquet").write_bytes(b"PAR1")
    code, output = inspect(tmp_path / "data", "--tokenizer", tokenizer)
    assert code == 3
    assert "1 shards damaged" in output
    assert "w0 w1 w2[[w3 w4]]" in output
    assert re.search(r"1 of 2 shards are damaged: shard-000001.parquet.*--repair", output)


def test_a_folder_without_dataset_gives_one_paragraph(tmp_path: Path) -> None:
    code, output = inspect(tmp_path)
    assert code == 3
    assert "holds no dataset" in output


def test_it_starts_without_ray_torch_or_transformers() -> None:
    probe = "import sys, jobs.inspect; assert not {'ray', 'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", probe], cwd=ROOT, check=True)
