"""Distilling over HTTP: the same shards as with the target at hand, and marks where ids are not certain."""

from pathlib import Path
from typing import Any

from eagleray.corpus.chat import ChatTemplate
from eagleray.corpus.manifest import ContentKey
from eagleray.corpus.prompt import Message, Prompt
from eagleray.corpus.shards import ShardRecord, read_shard
from eagleray.corpus.storage import LocalFolder
from eagleray.distillation.plan import ShardJob
from eagleray.distillation.shard_distiller import ShardDistiller
from eagleray.distillation.target_answers import TargetAnswers
from eagleray.engines.base import Engine
from tests.unit.engines.openai.reactions import status


def _prompt(*texts: str) -> Prompt:
    turns = [Message("assistant" if index % 2 else "user", text) for index, text in enumerate(texts)]
    return Prompt(messages=tuple(turns), category="c", source="s", licence="l")


PROMPTS = (_prompt("w5 w9"), _prompt("w7", "w8", "w11 w12"), _prompt("w200"), _prompt("w3"))


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
