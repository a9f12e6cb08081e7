"""Planned extents bound what the target can give, and are exact for answers that are kept."""

from pathlib import Path
from typing import Any

import pytest

from eagleray.corpus.accounting import Extent
from eagleray.corpus.chat import ChatTemplate
from eagleray.corpus.manifest import ContentKey
from eagleray.corpus.prompt import Message, Prompt
from eagleray.corpus.prompt_table import write_table
from eagleray.distillation import planned as planned_module
from eagleray.distillation.answers import GivenAnswers
from eagleray.distillation.config import DistilConfig
from eagleray.distillation.plan import ShardJob
from eagleray.distillation.planned import plan_extents, planned_extents
from eagleray.distillation.target_answers import TargetAnswers
from eagleray.engines.native.engine import NativeEngine


def conversation(*texts: str, given: str = "") -> Prompt:
    """User and assistant turns in turn, beginning with the user."""
    roles = ("user", "assistant") * len(texts)
    return Prompt(
        messages=tuple(Message(role, text) for role, text in zip(roles, texts, strict=False)),
        given=(Message("assistant", given),) if given else (),
        category="chat",
        source="test",
        licence="none",
    )


@pytest.fixture
def chat(tokenizer: Any) -> ChatTemplate:
    return ChatTemplate(tokenizer)


def test_a_single_turn_is_its_prompt_and_the_longest_answer(chat: ChatTemplate) -> None:
    prompt = conversation("Hi")
    asked = len(chat.encode(chat.ask(prompt.messages)))
    config = DistilConfig(max_new_tokens=7)
    assert planned_extents([prompt], chat, config, 200) == [
        Extent(category="chat", tokens=asked + 7, supervised=((asked, asked + 7),))
    ]


def test_no_answer_of_several_turns_is_longer_than_planned(
    chat: ChatTemplate, tiny_engine: NativeEngine, content_key: ContentKey
) -> None:
    prompts = [
        conversation("Hi", "Hello.", "Count to 3."),
        conversation("One", "a b c " * 9, "Two", "d", "Three"),
    ]
    config = DistilConfig(max_new_tokens=content_key.max_new_tokens)
    planned = planned_extents(prompts, chat, config, 200)
    assert [len(extent.supervised) for extent in planned] == [2, 3]
    job = ShardJob(index=0, prompts=tuple(prompts))
    ((_, answers),) = TargetAnswers(tiny_engine, chat, content_key, 200, 4).answer([job])
    for extent, answered in zip(planned, answers.answered, strict=True):
        for sequence in (one.sequence for one in answered.sequences):
            assert len(sequence.input_ids) <= extent.tokens
            for (start, end), (planned_start, planned_end) in zip(
                sequence.supervised, extent.supervised, strict=False
            ):
                assert start <= planned_start
                assert end <= planned_end


def test_only_the_last_turn_is_planned_where_only_it_is_learnt(chat: ChatTemplate) -> None:
    config = DistilConfig.model_validate({"max_new_tokens": 5, "supervision": {"turns": "last"}})
    (extent,) = planned_extents([conversation("Hi", "Hello.", "Count.")], chat, config, 200)
    assert extent.supervised == ((extent.tokens - 5, extent.tokens),)


def test_kept_answers_are_planned_exactly(chat: ChatTemplate) -> None:
    prompts = [conversation("Hi", given="Ok."), conversation("Without an answer")]
    config = DistilConfig(answers="keep", capture_features=False)
    (extent,) = planned_extents(prompts, chat, config, 200)
    answers = GivenAnswers(chat, config.supervision, 1000).encode(prompts)
    (sequence,) = (one.sequence for one in answers.answered[0].sequences)
    assert (extent.tokens, extent.supervised) == (len(sequence.input_ids), sequence.supervised)
    # Field case: of 35 ids the answer's two and its end of turn are supervised.
    assert (extent.tokens, extent.supervised) == (35, ((31, 34),))


def test_a_prompt_that_will_be_rejected_is_not_planned(chat: ChatTemplate) -> None:
    assert planned_extents([conversation("word " * 150)], chat, DistilConfig(), 100) == []


def test_many_prompts_are_planned_by_a_sample_that_says_so_and_is_scaled_up(
    chat: ChatTemplate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_table(tmp_path / "p.jsonl", [conversation(f"Hi {n % 10}") for n in range(200)])
    config = DistilConfig(max_new_tokens=8)
    every = plan_extents(table, chat, config, 200)
    assert (len(every.rows), every.note) == (200, "")
    monkeypatch.setattr(planned_module, "MAX_PLANNED", 50)
    sampled = plan_extents(table, chat, config, 200)
    assert len(sampled.rows) == 50
    assert sampled.note == "By a uniform sample of 50 of 200 prompts: "
    # Every prompt renders to as many tokens.
    assert sampled.tokens == every.tokens
