"""Rows of a file, by number: no more are read than are asked for, and always the same ones."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagleray.corpus.prompt import Prompt, user_prompt
from eagleray.corpus.prompt_table import MARK_ROWS, PromptTable, prompts_hash, write_table

ROWS = 2 * MARK_ROWS + 100


def prompt(text: str, category: str = "c") -> Prompt:
    return user_prompt(text, category=category, source="s", licence="l")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> PromptTable:
    path = tmp_path_factory.mktemp("table") / "train.jsonl"
    # Lines of many lengths, and text that spans lines when it is not escaped.
    return write_table(path, (prompt(f"{n} " + "\u2028\u00e9\n" * (n % 7)) for n in range(ROWS)))


def numbers(prompts: list[Prompt]) -> list[int]:
    return [int(one.messages[0].content.split(" ")[0]) for one in prompts]


@given(start=st.integers(0, ROWS + 5), length=st.integers(0, 40))
def test_a_range_of_rows_is_read_wherever_it_begins(table: PromptTable, start: int, length: int) -> None:
    assert numbers(table.read(start, start + length)) == list(range(start, min(start + length, ROWS)))


@pytest.mark.parametrize("start", [MARK_ROWS - 1, MARK_ROWS, 2 * MARK_ROWS, ROWS - 1])
def test_ranges_across_marks_are_whole(table: PromptTable, start: int) -> None:
    assert numbers(table.read(start, start + 3)) == list(range(start, min(start + 3, ROWS)))


def test_a_handle_stays_small_and_comes_back_from_json(table: PromptTable) -> None:
    assert len(table.marks) == 3
    again = PromptTable.model_validate_json(table.model_dump_json())
    assert again.read(ROWS - 2, ROWS) == table.read(ROWS - 2, ROWS)


def test_a_sample_is_uniform_in_number_ordered_and_the_same_each_time(table: PromptTable) -> None:
    chosen = numbers(list(table.sample(50, seed=3)))
    assert len(set(chosen)) == 50
    assert chosen == sorted(chosen) == numbers(list(table.sample(50, seed=3)))
    assert chosen != numbers(list(table.sample(50, seed=4)))
    assert numbers(list(table.sample(ROWS))) == list(range(ROWS))


def test_the_hash_is_of_content_category_and_order_and_not_of_where_prompts_came_from(tmp_path: Path) -> None:
    prompts = [prompt("a"), prompt("b")]
    table = write_table(tmp_path / "p.jsonl", prompts)
    assert table.content_hash == prompts_hash(prompts, "regenerate")
    moved = [dataclasses.replace(one, source="elsewhere") for one in prompts]
    assert prompts_hash(moved, "regenerate") == table.content_hash
    for other in ([prompt("b"), prompt("a")], [prompt("a")], [prompt("a"), prompt("b", "d")]):
        assert prompts_hash(other, "regenerate") != table.content_hash


def test_an_empty_table_has_no_rows_to_give(tmp_path: Path) -> None:
    table = write_table(tmp_path / "p.jsonl", [])
    assert (table.rows, table.read(0, 5), list(table.iterate())) == (0, [], [])
