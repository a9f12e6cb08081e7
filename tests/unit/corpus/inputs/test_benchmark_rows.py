"""Rows in the layouts of Spec-Bench and SPEED-Bench, made by us: our texts, their columns."""

import json

import pytest

from eagleray.corpus.prompt import Prompt
from eagleray.corpus.prompt_files import read_prompts

SPEC_BENCH = {"question_id": 81, "category": "writing", "turns": ["Write a line on rain.", "Shorter."]}
SPEED_BENCH = {
    "question_id": "q1",
    "category": "low_entropy",
    "sub_category": "coding",
    "turns": ["Sort three numbers."],
    "source": "ours",
    "src_id": "1",
    "difficulty": "easy",
    "multiturn": False,
}


def read(tmp_path, *rows):
    path = tmp_path / "bench.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return list(read_prompts(path, "prompts", "unknown"))


@pytest.mark.parametrize("row", [SPEC_BENCH, SPEED_BENCH], ids=["spec-bench", "speed-bench"])
def test_a_row_asks_its_first_turn_under_its_own_category(tmp_path, row):
    (prompt,) = read(tmp_path, row)
    assert isinstance(prompt, Prompt)
    assert [message.content for message in prompt.messages] == row["turns"][:1]
    assert prompt.category == row["category"]


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        (["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"], "placeholder"),
        (["Summarise this: {article}"], "{article}"),
        ([], "at least one"),
        ([7], "list of texts"),
        ("text", "list of texts"),
    ],
)
def test_a_row_without_its_text_is_refused(tmp_path, turns, reason):
    _, reject = read(tmp_path, SPEC_BENCH, {**SPEED_BENCH, "turns": turns})
    assert reason in reject.reason
