from pathlib import Path
from typing import Any

import pytest
import torch

from eagleray.corpus.chat import ChatTemplate
from eagleray.corpus.manifest import ContentKey
from eagleray.corpus.prompt import Prompt, user_prompt
from eagleray.corpus.shards import read_shard
from eagleray.distillation.answers import answer_source
from eagleray.distillation.plan import ShardJob, plan_shards, sample_id
from eagleray.distillation.shard_distiller import ShardDistiller
from eagleray.engines.native.engine import NativeEngine
from eagleray.targets.feature_store import FeatureStore

KEY = ContentKey(
    encoder_version=1,
    prompts_hash="p",
    target_hash="t",
    tokenizer_hash="k",
    template_hash="c",
    template_arguments={},
    answers="regenerate",
    supervised_turns="all",
    supervised_thinking=True,
    dtype="float32",
    sampling="greedy",
    max_new_tokens=6,
    rows_per_shard=4,
)


def prompt(text: str) -> Prompt:
    return user_prompt(text, category="code", source="test", licence="none")


PROMPTS = [prompt(f"Count to {number}.") for number in range(5)]


def distiller(
    engine: NativeEngine,
    tokenizer: Any,
    folder: Path,
    max_prompt_tokens: int = 200,
    features: FeatureStore | None = None,
) -> ShardDistiller:
    layers = features.layers if features else None
    answers = answer_source(KEY, ChatTemplate(tokenizer), engine, max_prompt_tokens, layers)
    return ShardDistiller(answers, KEY, folder, features)


def test_the_supervised_span_is_exactly_what_the_engine_emitted(
    tiny_engine: NativeEngine, tokenizer: Any, tmp_path: Path
) -> None:
    receipt = distiller(tiny_engine, tokenizer, tmp_path).distil(ShardJob(index=0, prompts=tuple(PROMPTS)))
    samples = read_shard(tmp_path, receipt.record)
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
    receipt = distiller(tiny_engine, tokenizer, tmp_path, max_prompt_tokens=100).distil(job)
    assert receipt.record.rows == 2
    assert [reject.reason for reject in receipt.rejects] == [
        f"the prompt has {len(tokenizer('word ' * 150).input_ids) + 30} tokens; at most 100 fit"
    ]


def test_making_a_shard_again_gives_the_same_bytes_and_ids(
    tiny_engine: NativeEngine, tokenizer: Any, tmp_path: Path
) -> None:
    job = ShardJob(index=0, prompts=tuple(PROMPTS))
    first = distiller(tiny_engine, tokenizer, tmp_path / "a").distil(job)
    again = distiller(tiny_engine, tokenizer, tmp_path / "b").distil(job)
    assert first.record == again.record


def test_stored_features_are_those_of_a_forward_over_the_whole_sequence(
    tiny_engine: NativeEngine, tokenizer: Any, tmp_path: Path
) -> None:
    store = FeatureStore(tmp_path / "features", (0, 2), torch.float32)
    receipt = distiller(tiny_engine, tokenizer, tmp_path, features=store).distil(
        ShardJob(index=0, prompts=tuple(PROMPTS))
    )
    for sample in read_shard(tmp_path, receipt.record):
        tokens = len(sample.input_ids) - 1
        features_TLD, final_TD = store.get(sample.sample_id, sample.input_ids)
        ids_BT, lengths_B = torch.tensor([sample.input_ids[:tokens]]), torch.tensor([tokens])
        expected_BTLD, expected_BTD = tiny_engine.decoder.capture(ids_BT, lengths_B, (0, 2))
        torch.testing.assert_close(features_TLD, expected_BTLD[0], atol=1e-4, rtol=0)
        torch.testing.assert_close(final_TD, expected_BTD[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (4, [4]), (5, [4, 1]), (9, [4, 4, 1])])
def test_plans_cover_every_prompt_once_in_order(count: int, sizes: list[int]) -> None:
    prompts = [prompt(str(number)) for number in range(count)]
    jobs = plan_shards(prompts, 4)
    assert [len(job.prompts) for job in jobs] == sizes
    assert [job.index for job in jobs] == list(range(len(sizes)))
    assert [one for job in jobs for one in job.prompts] == prompts


def test_sample_ids_differ_with_prompt_target_and_sampling() -> None:
    changes: list[dict[str, Any]] = [{}, {"target_hash": "u"}, {"max_new_tokens": 7}, {"template_hash": "d"}]
    ids = {sample_id(PROMPTS[0], KEY.model_copy(update=change), 0) for change in changes}
    assert len(ids | {sample_id(PROMPTS[1], KEY, 0)}) == 5
