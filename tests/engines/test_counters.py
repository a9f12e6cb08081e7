"""A server's counters against the cycles that its answers tell, on vLLM with prompt lookup."""

import os
from pathlib import Path

import pytest
import torch

from eagleray.corpus.chat import ChatTemplate
from eagleray.corpus.prompt import Message
from eagleray.engines.base import GenerationRequest
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.engines.served import PromptLookup
from eagleray.engines.vllm.config import VllmConfig
from eagleray.engines.vllm.process import VllmServer
from eagleray.targets.decoder import TargetDecoder
from eagleray.targets.embedded import prepare_embedded
from eagleray.targets.loading import load_tokenizer

NEW_TOKENS = 32


@pytest.mark.engine
@pytest.mark.timeout(1200)
def test_counters_and_greedy_ids_are_those_of_the_answers(tmp_path: Path) -> None:
    target = prepare_embedded()
    chat = ChatTemplate(load_tokenizer(target))
    prompt_ids = chat.encode(chat.ask([Message("user", "Repeat this four times: one two three.")]))
    environment = Path(os.environ.get("VLLM_ENV", ".venv-vllm"))
    config = VllmConfig(environment=environment, threads=2, max_length=256)
    with VllmServer(config, target, PromptLookup(depth=4), tmp_path / "server.log") as server:
        before = server.counters()
        answer = server.complete(prompt_ids, NEW_TOKENS)
        added = server.counters().since(before)
    native = NativeEngine(TargetDecoder.load(target, torch.float32), NativeEngineConfig())
    request = GenerationRequest(request_id="r", prompt_ids=prompt_ids, max_new_tokens=NEW_TOKENS)
    assert answer.answer_ids == native.generate([request]).generations[0].answer_ids
    assert added.drafts == sum(cycle.drafted > 0 for cycle in answer.cycles) > 0
