import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from eagleray.corpus.chat import ChatTemplate
from eagleray.corpus.config import AnswerSettings, SupervisionConfig
from eagleray.corpus.given_answers import given_turns
from eagleray.corpus.prompt import Message, Prompt, Reject, user_prompt
from eagleray.corpus.prompt_files import read_prompts
from eagleray.corpus.prompt_table import write_table
from eagleray.corpus.shards import Shard, ShardRecord, read_shard
from eagleray.corpus.storage import LocalFolder
from eagleray.corpus.supervision import to_sequences
from eagleray.distillation.answers import (
    AnsweredPrompt,
    AnsweredSequence,
    Answers,
    AnswerSource,
    GivenAnswers,
)
from eagleray.distillation.config import DistilConfig
from eagleray.distillation.plan import ShardJob, ShardPlan, sample_id
from eagleray.distillation.shard_distiller import ShardDistiller
from eagleray.distillation.target_answers import TargetAnswers
from eagleray.engines.native.engine import NativeEngine
from eagleray.errors import ConfigError
from eagleray.settings import validate
from eagleray.speculation.config import SamplingConfig
from eagleray.targets.feature_store import FeatureStore
from tests.unit import conftest

KEY = conftest.KEY.model_copy(update={"max_new_tokens": 6, "rows_per_shard": 4})


def prompt(text: str) -> Prompt:
    return user_prompt(text, category="code", source="test", licence="none")


PROMPTS = [prompt(f"Count to {number}.") for number in range(5)]


def read(folder: Path, record: ShardRecord) -> Shard:
    return read_shard(LocalFolder(folder), record)


def make(work: ShardDistiller, job: ShardJob) -> ShardRecord:
    """Make one shard and return what its journal entry says."""
    (entry,) = work.publish([job])
    assert entry.index == job.index
    return entry.shard


def distiller(
    engine: NativeEngine,
    tokenizer: Any,
    folder: Path,
    max_prompt_tokens: int = 200,
    features: FeatureStore | None = None,
    **changes: Any,
) -> ShardDistiller:
    key = KEY.model_copy(update=changes)
    layers = features.layers if features else None
    chat = ChatTemplate(tokenizer)
    answers: AnswerSource = TargetAnswers(
        engine, chat, key, max_prompt_tokens + key.max_new_tokens, 4, layers
    )
    if key.answers == "keep":
        answers = GivenAnswers(chat, key.supervision, max_prompt_tokens + key.max_new_tokens)
    return ShardDistiller(answers, key, LocalFolder(folder), features)


def test_the_supervised_span_is_exactly_what_the_engine_emitted(
    tiny_engine: NativeEngine, tokenizer: Any, tmp_path: Path
) -> None:
    record = make(distiller(tiny_engine, tokenizer, tmp_path), ShardJob(index=0, prompts=tuple(PROMPTS)))
    samples = read(tmp_path, record).samples
    assert len(samples) == 5
    for sample, asked in zip(samples, PROMPTS, strict=True):
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": asked.messages[0].content}],
            tokenize=False,
            add_generation_prompt=True,
        )
        assert tokenizer.decode(sample.input_ids[: sample.prompt_tokens]) == text
        assert sample.supervised == ((sample.prompt_tokens, len(sample.input_ids)),)
        assert sample.answer_tokens == len(sample.input_ids) - sample.prompt_tokens <= KEY.max_new_tokens
        # An answer that was cut gets no end token that the target never emitted.
        assert (sample.input_ids[-1] == tokenizer.eos_token_id) == (sample.finish_reason == "stop")


def test_a_bad_prompt_becomes_a_reject_and_the_others_are_answered(
    tiny_engine: NativeEngine, tokenizer: Any, tmp_path: Path
) -> None:
    job = ShardJob(index=3, prompts=(PROMPTS[0], prompt("word " * 150), PROMPTS[1]))
    record = make(distiller(tiny_engine, tokenizer, tmp_path, max_prompt_tokens=100), job)
    assert record.rows == 2
    assert [reject.reason for reject in read(tmp_path, record).rejects] == [
        f"the prompt has {len(tokenizer('word ' * 150).input_ids) + 30} tokens; at most 100 fit"
    ]


def test_making_a_shard_again_gives_the_same_bytes_and_ids(
    tiny_engine: NativeEngine, tokenizer: Any, tmp_path: Path
) -> None:
    job = ShardJob(index=0, prompts=tuple(PROMPTS))
    first = make(distiller(tiny_engine, tokenizer, tmp_path / "a"), job)
    again = make(distiller(tiny_engine, tokenizer, tmp_path / "b"), job)
    assert first == again


def test_stored_features_are_those_of_a_forward_over_the_whole_sequence(
    tiny_engine: NativeEngine, tokenizer: Any, tmp_path: Path
) -> None:
    store = FeatureStore(tmp_path / "features", (0, 2), torch.float32)
    record = make(
        distiller(tiny_engine, tokenizer, tmp_path, features=store), ShardJob(index=0, prompts=tuple(PROMPTS))
    )
    for sample in read(tmp_path, record).samples:
        tokens = len(sample.input_ids) - 1
        features_TLD, final_TD = store.get(sample.sample_id, sample.input_ids)
        ids_BT, lengths_B = torch.tensor([sample.input_ids[:tokens]]), torch.tensor([tokens])
        expected_BTLD, expected_BTD = tiny_engine.decoder.capture(ids_BT, lengths_B, (0, 2))
        torch.testing.assert_close(features_TLD, expected_BTLD[0], atol=1e-4, rtol=0)
        torch.testing.assert_close(final_TD, expected_BTD[0], atol=1e-4, rtol=0)


def test_sample_ids_differ_with_prompt_target_and_sampling() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"target_hash": "u"},
        {"max_new_tokens": 7},
        {"template_hash": "d"},
        {"sampling": SamplingConfig(temperature=1.0)},
        {"by_category": {"code": AnswerSettings(max_new_tokens=7)}},
    ]
    ids = {sample_id(PROMPTS[0], KEY.model_copy(update=change), 0, 0) for change in changes}
    other_draw, other_prompt = sample_id(PROMPTS[0], KEY, 1, 0), sample_id(PROMPTS[1], KEY, 0, 0)
    assert len(ids | {other_prompt, other_draw}) == 7


def test_every_bad_prompt_of_a_shard_is_a_reject_and_nothing_is_missing(
    tiny_engine: NativeEngine, tokenizer: Any, tmp_path: Path
) -> None:
    """S3: too long, empty, and with a lone surrogate, in ten rows."""
    texts = [f"Count to {number}." for number in range(10)]
    texts[3], texts[6], texts[7] = "word " * 300, "", "lone \ud83d"
    path = tmp_path / "ten.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    items = list(read_prompts(path, "code", "none"))
    prompts = tuple(item for item in items if isinstance(item, Prompt))
    record = make(distiller(tiny_engine, tokenizer, tmp_path), ShardJob(index=0, prompts=prompts))
    rejects = [
        *(item for item in items if isinstance(item, Reject)),
        *read(tmp_path, record).rejects,
    ]
    assert record.prompts == len(prompts) == 8
    assert record.rows == record.answered_prompts == 7
    assert sorted(reject.origin.split(" ")[0] for reject in rejects) == [
        f"{path}:{line}" for line in (4, 7, 8)
    ]


CHAT = Prompt(
    messages=(Message("user", "A?"), Message("assistant", "Yes."), Message("user", "B?")),
    given=(Message("assistant", "No."),),
    category="chat",
    source="test",
    licence="none",
)


def test_features_of_several_turns_are_those_of_the_whole_sequence(
    tiny_engine: NativeEngine, tokenizer: Any, tmp_path: Path
) -> None:
    store = FeatureStore(tmp_path / "features", (0, 2), torch.float32)
    work = distiller(tiny_engine, tokenizer, tmp_path, features=store, max_new_tokens=40)
    record = make(work, ShardJob(index=0, prompts=(CHAT, *PROMPTS)))
    samples = read(tmp_path, record).samples
    for sample in samples:
        features_TLD, _ = store.get(sample.sample_id, sample.input_ids)
        ids_BT = torch.tensor([sample.input_ids[:-1]])
        expected_BTLD, _ = tiny_engine.decoder.capture(ids_BT, torch.tensor([ids_BT.shape[1]]), (0, 2))
        torch.testing.assert_close(features_TLD, expected_BTLD[0], atol=1e-4, rtol=0)


def test_kept_answers_are_marked_as_given_and_run_no_engine(tokenizer: Any, tmp_path: Path) -> None:
    unused: Any = None
    work = distiller(unused, tokenizer, tmp_path, answers="keep")
    record = make(work, ShardJob(index=0, prompts=(CHAT, PROMPTS[0])))
    (sample,) = read(tmp_path, record).samples
    assert sample.answer_origin == "given"
    assert [tokenizer.decode(sample.input_ids[start:end]) for start, end in sample.supervised] == [
        "Yes.<|im_end|>",
        "No.<|im_end|>",
    ]
    assert [reject.reason for reject in read(tmp_path, record).rejects] == ["the row has no answer to keep"]


def test_regenerated_answers_are_marked_as_the_targets(
    tiny_engine: NativeEngine, tokenizer: Any, tmp_path: Path
) -> None:
    record = make(distiller(tiny_engine, tokenizer, tmp_path), ShardJob(index=0, prompts=(CHAT,)))
    assert {sample.answer_origin for sample in read(tmp_path, record).samples} == {"target"}


def test_a_conversation_that_one_sequence_cannot_hold_gives_numbered_parts_of_distinct_ids(
    tokenizer: Any, tmp_path: Path
) -> None:
    class TwoPieces:
        """Encodes an answer letter by letter, as a request never is."""

        chat = ChatTemplate(tokenizer)

        def answer(self, jobs: Iterable[ShardJob]) -> Iterator[tuple[ShardJob, Answers]]:
            (job,) = jobs
            first, second = given_turns(self.chat, job.prompts[0])
            letters = (
                tuple(id for letter in "Yes." for id in self.chat.encode(letter)) + first.answer_ids[-1:]
            )
            turns = [dataclasses.replace(first, answer_ids=letters), second]
            sequences = tuple(
                AnsweredSequence(sequence=one, origin="target")
                for one in to_sequences(turns, SupervisionConfig())
            )
            one = AnsweredPrompt(prompt=job.prompts[0], sequences=sequences)
            yield job, Answers(answered=(one,), rejects=())

    work = ShardDistiller(TwoPieces(), KEY, LocalFolder(tmp_path))
    record = make(work, ShardJob(index=0, prompts=(CHAT,)))
    samples = read(tmp_path, record).samples
    assert [sample.part for sample in samples] == [0, 1]
    assert len({sample.sample_id for sample in samples}) == 2
    assert (record.rows, record.answered_prompts, record.prompts) == (2, 1, 1)
    assert tokenizer.decode(samples[1].input_ids[: samples[1].prompt_tokens]).count("Yes.") == 1


def test_a_sample_of_kept_answers_has_an_id_of_its_own_answer() -> None:
    keep = KEY.model_copy(update={"answers": "keep"})
    other = dataclasses.replace(CHAT, given=(Message("assistant", "Maybe."),))
    assert sample_id(CHAT, KEY, 0, 0) == sample_id(other, KEY, 0, 0)
    assert len({sample_id(CHAT, keep, 0, 0), sample_id(other, keep, 0, 0), sample_id(CHAT, KEY, 0, 0)}) == 3
    assert sample_id(CHAT, KEY, 0, 0) != sample_id(CHAT, KEY, 0, 1)
    assert sample_id(CHAT, KEY, 0, 0) != sample_id(dataclasses.replace(CHAT, repeat=1), KEY, 0, 0)


def test_keeping_answers_and_capturing_features_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="set capture_features: false"):
        validate(DistilConfig, {"answers": "keep"}, "distil")
    assert validate(DistilConfig, {"answers": "keep", "capture_features": False}, "distil").answers == "keep"


def test_a_group_that_was_begun_by_a_worker_that_died_is_completed_and_nothing_is_made_twice(
    tiny_engine: NativeEngine, tokenizer: Any, tmp_path: Path
) -> None:
    table = write_table(tmp_path / "prompts.jsonl", PROMPTS)
    plan = ShardPlan(rows=5, rows_per_shard=2, window_rows=100)
    work = distiller(tiny_engine, tokenizer, tmp_path / "dataset")
    begun = next(work.publish_missing(table, plan, [0, 1, 2]))
    made = (tmp_path / "dataset" / begun.shard.file).stat().st_ino
    entries = list(work.publish_missing(table, plan, [0, 1, 2]))
    assert entries[0] == begun
    assert sorted(entry.index for entry in entries) == [0, 1, 2]
    assert (tmp_path / "dataset" / begun.shard.file).stat().st_ino == made
    assert sum(entry.shard.rows for entry in entries) == 5


def test_several_answers_to_greedy_decoding_are_refused_also_for_one_category() -> None:
    for content in (
        {"samples_per_prompt": 2},
        {"by_category": {"code": {"samples_per_prompt": 2}}},
        {
            "sampling": {"temperature": 1.0},
            "samples_per_prompt": 2,
            "by_category": {"code": {"sampling": {}}},
        },
    ):
        with pytest.raises(ConfigError, match=r"samples_per_prompt is 2, .*temperature above 0"):
            validate(DistilConfig, content, "distil")


def test_a_category_inherits_what_it_does_not_set() -> None:
    content = {
        "max_new_tokens": 50,
        "sampling": {"temperature": 1.0},
        "by_category": {"code": {"samples_per_prompt": 4}, "maths": {"max_new_tokens": 9}},
    }
    config = validate(DistilConfig, content, "distil")
    assert config.answering("code").model_dump()["samples_per_prompt"] == 4
    assert config.answering("code").max_new_tokens == config.answering("chat").max_new_tokens == 50
    assert (config.answering("maths").max_new_tokens, config.answering("maths").sampling.temperature) == (
        9,
        1,
    )
