"""One drafter measured in process, through our endpoint, through our endpoint by vLLM, by vLLM's counters."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch

from eagleray.corpus.chat import ChatTemplate
from eagleray.corpus.prompt import Message
from eagleray.drafters.folder import load_drafter
from eagleray.engines.base import DraftSetting, Generation, GenerationRequest
from eagleray.engines.managed.engine import ManagedEngine
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.engines.vllm.process import VllmServer
from eagleray.serving import opening
from eagleray.serving.config import ServeConfig
from eagleray.serving.http import build_http
from eagleray.serving.service import Service
from eagleray.speculation.acceptance import Cycle, summarize
from eagleray.targets.decoder import TargetDecoder
from eagleray.targets.embedded import prepare_embedded
from eagleray.targets.loading import load_tokenizer

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

DEPTH = 5
NEW_TOKENS = 64
QUESTIONS = (
    "What is the capital of France?",
    "Write a Python function that adds two numbers.",
    "Say hi.",
    "12 * 7 = ?",
    "Translate 'good night' to Spanish.",
    "Write a Python function that reverses a list.",
    "Repeat this four times: one two three.",
    "Explain what a loop is.",
    "Write a Python class for a stack.",
    "What is 9 + 16?",
    "Name three colours.",
    "Write a Python function that counts the words of a text.",
    "Write a short story about a cat.",
    "Why is the sky blue?",
)


@pytest.fixture(scope="module")
def prompts() -> list[tuple[int, ...]]:
    chat = ChatTemplate(load_tokenizer(prepare_embedded()))
    return [chat.encode(chat.ask([Message("user", question)])) for question in QUESTIONS]


@pytest.fixture(scope="module")
def in_process(eagle3: Path, prompts: list[tuple[int, ...]]) -> list[Generation]:
    decoder = TargetDecoder.load(prepare_embedded(), torch.float32)
    engine = NativeEngine(decoder, NativeEngineConfig(batch_invariant=True))
    draft = DraftSetting(source=load_drafter(eagle3, decoder.heads), depth=DEPTH)
    requests = [
        GenerationRequest(request_id=str(place), prompt_ids=prompt, max_new_tokens=NEW_TOKENS)
        for place, prompt in enumerate(prompts)
    ]
    return list(engine.generate(requests, draft=draft).generations)


class Endpoint:
    """A service and its ASGI application; where vLLM answers, its engines, the newest last."""

    def __init__(self, service: Service, engines: list[ManagedEngine]):
        self.service = service
        self.engines = engines
        self._app = build_http(service)

    @property
    def server(self) -> VllmServer:
        server = self.engines[-1].server
        assert isinstance(server, VllmServer)
        return server

    def send(self, *requests: tuple[str, str, Any]) -> list[httpx.Response]:
        """Send requests at the same time."""

        async def together() -> list[httpx.Response]:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=None) as client:
                sent = (client.request(method, path, json=body) for method, path, body in requests)
                return list(await asyncio.gather(*sent))

        return asyncio.run(together())

    def complete(self, prompts: Sequence[tuple[int, ...]], **fields: Any) -> list[dict[str, Any]]:
        body = {"max_tokens": NEW_TOKENS, "temperature": 0, "return_token_ids": True, "return_cycles": True}
        responses = self.send(
            *[("POST", "/v1/completions", {**body, **fields, "prompt": prompt}) for prompt in prompts]
        )
        assert [response.status_code for response in responses] == [200] * len(prompts)
        return [response.json() for response in responses]


@pytest.fixture(scope="module")
def vllm(eagle3: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    engine = {
        "name": "vllm",
        "environment": os.environ.get("VLLM_ENV", ".venv-vllm"),
        "threads": 1,
        "max_length": 512,
    }
    logs = tmp_path_factory.mktemp("vllm")
    engines: list[ManagedEngine] = []

    class Kept(ManagedEngine):
        def __init__(self, *arguments: Any):
            super().__init__(*arguments)
            engines.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "ManagedEngine", Kept)
        config = {
            "engine": engine,
            "engine_logs": logs,
            "draft": {"folder": eagle3, "depth": DEPTH},
            "canary": {"share": 0.5, "min_cycles": 60, "min_compared": 3},
        }
        service = opening.open_service(ServeConfig.model_validate(config))
        yield Endpoint(service, engines)
        service.close()


def cycles_of(reply: dict[str, Any]) -> list[Cycle]:
    told = reply["choices"][0]["cycles"]
    return [
        Cycle(drafted=drafted, accepted=accepted, delivered=delivered)
        for drafted, accepted, delivered in zip(
            told["drafted"], told["accepted"], told["delivered"], strict=True
        )
    ]


def ids_of(replies: Sequence[dict[str, Any]]) -> list[tuple[int, ...]]:
    return [tuple(reply["choices"][0]["token_ids"]) for reply in replies]


def tau(cycles: Sequence[Cycle]) -> float:
    return summarize(cycles).acceptance_length


def test_our_endpoint_gives_the_native_engine_s_cycles(eagle3, prompts, in_process) -> None:
    native = {"name": "native", "batch_invariant": True}
    config = {"engine": native, "draft": {"folder": eagle3, "depth": DEPTH}}
    service = opening.open_service(ServeConfig.model_validate(config))
    replies = Endpoint(service, []).complete(prompts)
    service.close()
    assert ids_of(replies) == [one.answer_ids for one in in_process]
    assert [cycles_of(reply) for reply in replies] == [list(one.cycles) for one in in_process]


def test_vllm_behind_our_endpoint_accepts_as_much_and_counts_the_same(vllm, prompts, in_process) -> None:
    before = vllm.server.counters()
    replies = vllm.complete(prompts)
    added = vllm.server.counters().since(before)
    assert ids_of(replies) == [one.answer_ids for one in in_process]
    native = tau([cycle for one in in_process for cycle in one.cycles])
    served = [cycle for reply in replies for cycle in cycles_of(reply)]
    print(f"tau in process {native:.4f}, vLLM through the endpoint {tau(served):.4f}, counters {added}")
    # Drafts that are never right would agree by doing nothing.
    assert native > 1.3
    # Drafter and target run in other kernels there, and near ties of the drafter fall otherwise.
    assert tau(served) == pytest.approx(native, rel=0.02)
    # vLLM counts verifications of a draft as we do; what it accepted, before a stop or a limit cut the last
    # draft of an answer: at most DEPTH tokens an answer. Put right by the lengths of the answers, both are
    # one figure but for steps without a draft, which it does not count: here at most one step in a hundred.
    assert added.drafts == sum(cycle.drafted > 0 for cycle in served)
    accepted = sum(cycle.accepted for cycle in served)
    assert accepted <= added.accepted <= accepted + DEPTH * len(prompts)
    lengths = [len(ids) for ids in ids_of(replies)]
    assert added.summary(lengths).acceptance_length == pytest.approx(tau(served), rel=0.01)
    for reply in replies:
        facts = summarize(cycles_of(reply))
        assert reply["speculation"]["acceptance_length"] == facts.acceptance_length
        assert reply["speculation"]["acceptance_rate_by_slot"] == list(facts.acceptance_rate_by_slot)


def test_a_stream_is_the_whole_answer_in_pieces(vllm, prompts) -> None:
    (whole,) = vllm.complete(prompts[1:2])
    body = {"prompt": prompts[1], "max_tokens": NEW_TOKENS, "temperature": 0, "stream": True}
    (response,) = vllm.send(
        ("POST", "/v1/completions", {**body, "stream_options": {"include_usage": True}}),
    )
    events = events_of(response)
    texts = [choice["text"] for event in events for choice in event["choices"]]
    assert len(texts) > 5
    assert "".join(texts) == whole["choices"][0]["text"]
    assert events[-1]["usage"] == whole["usage"]
    assert events[-1]["speculation"] == whole["speculation"]


@pytest.mark.parametrize("first", [5, 11])
def test_a_stop_string_ends_the_answer_at_the_native_token(vllm, prompts, first, in_process) -> None:
    (whole,) = vllm.complete(prompts[1:2])
    stop = whole["choices"][0]["text"][first : first + 3]
    (reply,) = vllm.complete(prompts[1:2], stop=[stop])
    choice = reply["choices"][0]
    text = whole["choices"][0]["text"]
    assert choice["text"] == text[: text.index(stop)]
    assert choice["finish_reason"] == "stop"
    ids = tuple(choice["token_ids"])
    assert ids == in_process[1].answer_ids[: len(ids)]
    # Its front end ends such an answer, while the engine gives counts with answers that it ends itself.
    assert reply["speculation"]["cycles"] == 0


@pytest.mark.parametrize("field", [{"logprobs": 2}, {"draft_depth": 0}])
def test_what_vllm_is_not_asked_for_is_refused_by_name(vllm, prompts, field) -> None:
    (response,) = vllm.send(("POST", "/v1/completions", {"prompt": prompts[0], "max_tokens": 4, **field}))
    assert response.status_code == 400
    assert "Leave it out, or use the native engine" in response.json()["error"]["message"]


def test_a_drafter_is_swapped_by_a_second_server_and_the_first_one_ends(vllm, prompts, eagle3) -> None:
    """The same drafter one token shallower does about as well and answers the same."""
    service, first = vllm.service, vllm.engines[-1]
    draft = service._live.draft.model_copy(update={"depth": 4})

    async def swap() -> list[str]:
        transport = httpx.ASGITransport(vllm._app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=None) as client:
            await service.swap(draft)
            for prompt in prompts * 4:
                body = {"prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0}
                (await client.post("/v1/completions", json=body)).raise_for_status()
                if service.swaps:
                    break
            while service._shadows:
                await asyncio.sleep(0.05)
        return service.swaps

    swaps = asyncio.run(swap())
    assert len(swaps) == 1
    assert swaps[0].startswith("promote drafter-2"), swaps
    deadline_s = time.monotonic() + 60
    while first.server.ended is None and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert first.server.ended is not None
    assert vllm.server is not first.server
    assert service.health.serves
    vllm.complete(prompts[:1])


def test_a_killed_server_is_an_error_and_a_health_of_its_own_and_leaves_nothing(vllm, prompts) -> None:
    """Last: it leaves nothing that answers."""
    group = os.getpgid(vllm.server._process.pid)
    processes = group_of(group)
    assert processes

    async def kill_mid_request() -> httpx.Response:
        transport = httpx.ASGITransport(vllm._app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=None) as client:
            body = {"prompt": prompts[12], "max_tokens": 400, "temperature": 0, "stream": True}
            before = vllm.engines[-1].stream.delivered_tokens
            answer = asyncio.ensure_future(client.post("/v1/completions", json=body))
            while vllm.engines[-1].stream.delivered_tokens < before + 4 and not answer.done():
                await asyncio.sleep(0.01)
            os.kill(vllm.server._process.pid, signal.SIGKILL)
            return await answer

    response = asyncio.run(kill_mid_request())
    assert response.status_code == 200  # the answer had begun
    last = response.text.strip().rpartition("data: ")[2]
    error = json.loads(last)["error"]
    assert error["message"] == "The engine has stopped; try again in a moment."
    health, refused = vllm.send(
        ("GET", "/health", None), ("POST", "/v1/completions", {"prompt": "Hi", "max_tokens": 2})
    )
    assert health.status_code == refused.status_code == 503
    assert health.json() == {"status": "stopped", "reason": "vLLM ended with exit code -9"}
    assert "error" in refused.json()
    vllm.service.close()
    assert not group_of(group)
    assert not [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def group_of(group: int) -> list[psutil.Process]:
    """Processes of a group that run."""
    return [
        process
        for process in psutil.process_iter()
        if process.status() != psutil.STATUS_ZOMBIE and os.getpgid(process.pid) == group
    ]


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a streamed answer, which must end in [DONE]."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
