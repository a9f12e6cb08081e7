"""Distilling over HTTP: the same shards as with the target at hand, and marks where ids are not certain."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from eagleray.corpus.chat import ChatTemplate
from eagleray.corpus.manifest import ContentKey
from eagleray.corpus.prompt import Message, Prompt
from eagleray.corpus.shards import ShardRecord, read_shard
from eagleray.corpus.storage import LocalFolder
from eagleray.distillation.plan import ShardJob
from eagleray.distillation.shard_distiller import ShardDistiller
from eagleray.distillation.target_answers import TargetAnswers
from eagleray.engines.base import CapturedFeatures, Engine
from eagleray.engines.openai.config import OpenAIEngineConfig
from eagleray.engines.openai.engine import OpenAIEngine
from eagleray.errors import EngineError
from eagleray.targets.feature_store import FeatureStore
from tests.unit.engines.openai.reactions import status


def _prompt(*texts: str) -> Prompt:
    turns = [Message("assistant" if index % 2 else "user", text) for index, text in enumerate(texts)]
    return Prompt(messages=tuple(turns), category="c", source="s", licence="l")


PROMPTS = (_prompt("w5 w9"), _prompt("w7", "w8", "w11 w12"), _prompt("w200"), _prompt("w3"))


class _Reader:
    """Gives of every position its id, as features of two layers."""

    layers = (0, 1)

    def __init__(self) -> None:
        self.paths: list[str | None] = []

    async def take(self, path: str | None, ids: Sequence[int]) -> CapturedFeatures:
        self.paths.append(path)
        if path == "gone":
            raise EngineError("no such file")
        values_T = torch.tensor(ids[:-1], dtype=torch.float32)
        return CapturedFeatures(
            features_TLD=values_T[:, None, None].expand(-1, 2, 4), final_TD=values_T[:, None].expand(-1, 4)
        )


def _shard(engine: Engine, chat: ChatTemplate, key: ContentKey, folder: Path) -> ShardRecord:
    answers = TargetAnswers(engine, chat, key, context_window_tokens=64, concurrency=4)
    distiller = ShardDistiller(answers, key, LocalFolder(folder))
    (entry,) = distiller.publish([ShardJob(index=0, prompts=PROMPTS)])
    return entry.shard


def test_a_shard_answered_over_http_has_the_bytes_of_one_answered_here(
    serve: Any, connect: Any, target: Any, content_key: ContentKey, tmp_path: Path
) -> None:
    here = _shard(target.native, target.chat, content_key, tmp_path / "here")
    for kind in ("vllm", "sglang"):
        assert _shard(connect(serve(kind)), target.chat, content_key, tmp_path / kind) == here
    text = _shard(connect(serve("plain")), target.chat, content_key, tmp_path / "text")
    assert (text.mismatched_prompts, text.answer_tokens) == (0, here.answer_tokens)
    samples = read_shard(LocalFolder(tmp_path / "text"), text).samples
    assert {sample.answer_origin for sample in samples} == {"retokenised"}


def test_unconfirmed_ids_are_counted_and_a_refused_prompt_is_a_reject(
    serve: Any, connect: Any, target: Any, content_key: ContentKey, tmp_path: Path
) -> None:
    server = serve("plain", usage=False, pieces=False)
    engine = connect(server)
    refused = list(target.chat.encode("w200</s>"))
    server.hook = lambda sent: status(400, "no such prompt") if sent["prompt"] == refused else None
    record = _shard(engine, target.chat, content_key, tmp_path)
    assert (record.answered_prompts, record.rejected_prompts, record.mismatched_prompts) == (3, 1, 3)
    (reject,) = read_shard(LocalFolder(tmp_path), record).rejects
    assert reject.reason == "HTTP 400: no such prompt"


def test_features_of_every_answer_are_read_from_where_the_server_says_and_stored_with_its_sample(
    serve: Any, target: Any, content_key: ContentKey, tmp_path: Path
) -> None:
    server, reader = serve("vllm", told={"hidden_states_path": "there", "more": 1}), _Reader()
    engine = OpenAIEngine(OpenAIEngineConfig(url=server.url), target.folder, reader)
    server.bodies.clear()
    store = FeatureStore(tmp_path / "features", reader.layers, torch.float32)
    answers = TargetAnswers(engine, target.chat, content_key, 64, concurrency=4, capture_layers=(0, 1))
    distiller = ShardDistiller(answers, content_key, LocalFolder(tmp_path / "data"), store)
    (entry,) = distiller.publish([ShardJob(index=0, prompts=PROMPTS)])
    engine.close()
    assert {str(body["kv_transfer_params"]) for body in server.bodies} == {"{'include_output_tokens': True}"}
    assert reader.paths == ["there"] * len(server.bodies)
    for sample in read_shard(distiller.storage, entry.shard).samples:
        _, final_TD = store.get(sample.sample_id, sample.input_ids)
        assert final_TD[:, 0].tolist() == list(sample.input_ids[:-1])


def test_other_layers_than_the_server_captures_and_a_lost_file_end_the_work(
    serve: Any, target: Any, make_requests: Any
) -> None:
    server = serve("vllm", told={"hidden_states_path": "gone"})
    engine = OpenAIEngine(OpenAIEngineConfig(url=server.url), target.folder, _Reader())
    with pytest.raises(EngineError, match=r"Features of layers \(1,\).*captures \(0, 1\)"):
        engine.open_stream(capture_layers=(1,))
    with pytest.raises(EngineError, match="no such file"):
        engine.generate(make_requests([3]), capture_layers=(0, 1))
    engine.close()
