"""Answers given as ids become training samples, and a bad file is a paragraph."""

import json
from pathlib import Path

import pytest

from eagleray.errors import DataError
from eagleray.settings import read_yaml, validate
from jobs.bench_train import TrainBench, read_answers

ROW = {"id": 7, "family": "code", "split": "train", "prompt_ids": [1, 2, 3], "answer_ids": [4, 5]}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_answer_is_supervised_and_the_prompt_is_not(tmp_path: Path) -> None:
    training, held_out = read_answers(
        write(tmp_path / "a.jsonl", ROW, {**ROW, "id": 8, "split": "test", "family": "prose"})
    )
    assert training[0].input_ids == (1, 2, 3, 4, 5)
    assert training[0].supervised == ((3, 5),)
    assert [sample.category for sample in held_out] == ["prose"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([ROW], "1 train, 0 test answers"),
        ([{**ROW, "split": "dev"}], ":1 is not an emitted answer"),
        ([ROW, {"id": 1}], ":2 is not an emitted answer"),
        ([ROW, 5], ":2 is not an emitted answer"),
    ],
)
def test_a_bad_file_says_what_was_expected(tmp_path: Path, rows: list[object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_answers(write(tmp_path / "a.jsonl", *rows))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no file .*none\.jsonl"):
        read_answers(tmp_path / "none.jsonl")


@pytest.mark.parametrize("name", ["train", "study"])
def test_the_benches_that_ship_are_valid(name: str) -> None:
    path = Path(f"configs/bench/{name}.yaml")
    assert validate(TrainBench, read_yaml(path), str(path)).drafters
