"""A target that vLLM serves, asked over HTTP: the native ids, and an error once the server is gone."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from eagleray.corpus.chat import ChatTemplate
from eagleray.corpus.prompt import Message
from eagleray.engines.base import GenerationRequest, RequestStream
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.engines.openai.config import OpenAIEngineConfig
from eagleray.engines.openai.engine import OpenAIEngine
from eagleray.engines.vllm.config import VllmConfig
from eagleray.engines.vllm.process import VllmServer
from eagleray.errors import EngineError
from eagleray.speculation.config import SamplingConfig
from eagleray.targets.decoder import TargetDecoder
from eagleray.targets.embedded import prepare_embedded
from eagleray.targets.loading import load_tokenizer

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

QUESTIONS = (
    "What is the capital of France?",
    "Write a Python function that adds two numbers.",
    "Say hi.",
    "List three colours \U0001f308.",
    "12 * 7 = ?",
    "Translate 'good night' to Spanish.",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return prepare_embedded()


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    environment = Path(os.environ.get("VLLM_ENV", ".venv-vllm"))
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with VllmServer(VllmConfig(environment=environment, threads=2), folder, None, log) as server:
        yield server


@pytest.fixture(scope="module")
def engine(server: VllmServer, folder: Path) -> Iterator[OpenAIEngine]:
    config = OpenAIEngineConfig(url=server.url, max_retries=2, first_retry_wait_s=0.1)
    engine = OpenAIEngine(config, folder)
    yield engine
    engine.close()


def _requests(folder: Path, **fields: Any) -> list[GenerationRequest]:
    chat = ChatTemplate(load_tokenizer(folder))
    return [
        GenerationRequest(
            request_id=question,
            prompt_ids=chat.encode(chat.ask([Message("user", question)])),
            **{"max_new_tokens": 48, **fields},
        )
        for question in QUESTIONS
    ]


def test_greedy_ids_are_those_of_the_native_engine(engine: OpenAIEngine, folder: Path) -> None:
    requests = _requests(folder)
    there = engine.generate(requests).generations
    decoder = TargetDecoder.load(folder, torch.float32)
    here = NativeEngine(decoder, NativeEngineConfig()).generate(requests).generations
    assert [one.answer_ids for one in there] == [one.answer_ids for one in here]
    assert [one.finish_reason for one in there] == [one.finish_reason for one in here]
    assert {one.finish_reason for one in there} == {"stop", "length"}
    assert {one.origin for one in there} == {"target"}


def test_a_seed_gives_the_same_answer_again(engine: OpenAIEngine, folder: Path) -> None:
    sampling = SamplingConfig(temperature=1.0, top_k=50, top_p=0.95, min_p=0.01)

    def draw(seed: int) -> list[tuple[int, ...]]:
        requests = _requests(folder, sampling=sampling, seed=seed, max_new_tokens=16)
        return [one.answer_ids for one in engine.generate(requests).generations]

    assert draw(1) == draw(1) != draw(2**63 - 1)


def test_a_server_that_goes_away_is_an_error_that_names_it(
    engine: OpenAIEngine, server: VllmServer, folder: Path
) -> None:
    """Last: it leaves no server to ask."""
    requests = _requests(folder, max_new_tokens=400)
    stream = engine.open_stream()
    for request in requests:
        stream.submit(request)
    stream.advance()
    server.stop()
    with pytest.raises(EngineError, match=f"{server.url} does not answer"):
        engine.generate(requests)
    with pytest.raises(EngineError, match=f"{server.url} does not answer"):
        _finish(stream)
    assert stream.unfinished == 0


def _finish(stream: RequestStream) -> None:
    while stream.unfinished:
        stream.advance()
