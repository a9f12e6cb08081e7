"""The partition: every prompt in exactly one shard, the same one whenever and by whomever it is made."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagleray.corpus.prompt import Prompt, user_prompt
from eagleray.corpus.prompt_table import write_table
from eagleray.distillation.plan import MAX_GROUP, ShardPlan, group_shards, prompt_characters


def prompt(text: str) -> Prompt:
    return user_prompt(text, category="c", source="s", licence="l")


plans = st.builds(
    ShardPlan, rows=st.integers(0, 60), rows_per_shard=st.integers(1, 9), window_rows=st.integers(1, 25)
)


@given(plan=plans, lengths=st.randoms(use_true_random=False))
def test_every_prompt_is_in_one_shard_of_its_window_and_no_shard_is_empty_or_too_large(
    tmp_path_factory: pytest.TempPathFactory, plan: ShardPlan, lengths: object
) -> None:
    texts = [f"{n:03d}" + "x" * lengths.randrange(5) for n in range(plan.rows)]  # type: ignore[attr-defined]
    table = write_table(tmp_path_factory.mktemp("plan") / "p.jsonl", map(prompt, texts))
    jobs = list(plan.jobs(table, range(plan.num_shards)))
    assert [job.index for job in jobs] == list(range(plan.num_shards))
    assert all(1 <= len(job.prompts) <= plan.rows_per_shard for job in jobs)
    found = [one.messages[0].content for job in jobs for one in job.prompts]
    assert sorted(found) == texts
    for job in jobs:
        start, stop = plan.window(job.index)
        assert {one.messages[0].content for one in job.prompts} <= set(texts[start:stop])


@given(plan=plans, chosen=st.randoms(use_true_random=False))
def test_a_shard_is_the_same_whatever_else_is_made(
    tmp_path_factory: pytest.TempPathFactory, plan: ShardPlan, chosen: object
) -> None:
    texts = ["x" * (n * 7 % 5) + str(n) for n in range(plan.rows)]
    table = write_table(tmp_path_factory.mktemp("plan") / "p.jsonl", map(prompt, texts))
    everything = {job.index: job for job in plan.jobs(table, range(plan.num_shards))}
    some = [shard for shard in everything if chosen.random() < 0.3]  # type: ignore[attr-defined]
    assert list(plan.jobs(table, some)) == [everything[shard] for shard in some]


def test_prompts_of_a_window_go_into_shards_by_length_and_equal_lengths_keep_their_order(
    tmp_path: Path,
) -> None:
    texts = ["a", "bbbb", "cc", "dddd", "e", "ff", "gggggg"]
    table = write_table(tmp_path / "p.jsonl", map(prompt, texts))
    plan = ShardPlan(rows=7, rows_per_shard=2, window_rows=4)
    made = [[one.messages[0].content for one in job.prompts] for job in plan.jobs(table, range(4))]
    assert made == [["bbbb", "dddd"], ["cc", "a"], ["gggggg", "ff"], ["e"]]


def test_length_counts_every_turn_and_the_given_answer() -> None:
    assert prompt_characters(prompt("four")) == 4


@given(shards=st.lists(st.integers(0, 10**6), unique=True, max_size=400), workers=st.integers(1, 9))
def test_groups_cover_the_shards_in_order_and_shrink(shards: list[int], workers: int) -> None:
    groups = group_shards(shards, workers)
    assert [shard for group in groups for shard in group] == shards
    sizes = [len(group) for group in groups]
    assert sizes == sorted(sizes, reverse=True)
    assert all(1 <= size <= MAX_GROUP for size in sizes)
    if len(shards) >= 2 * workers:
        assert sizes[-2 * workers + 1 :] == [1] * (2 * workers - 1)


def test_nineteen_shards_for_two_workers() -> None:
    assert [len(group) for group in group_shards(range(19), 2)] == [5, 4, 3, 2, 2, 1, 1, 1]
