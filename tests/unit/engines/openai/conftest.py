"""A tiny random target, and a real HTTP server whose answers its native engine gives."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import web
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from eagleray.corpus.chat import ChatTemplate
from eagleray.engines.base import Generation, GenerationRequest
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.engines.openai.background import BackgroundLoop
from eagleray.engines.openai.config import OpenAIEngineConfig
from eagleray.engines.openai.engine import OpenAIEngine
from eagleray.targets.decoder import TargetDecoder
from eagleray.targets.loading import load_tokenizer

VOCAB_SIZE = 300
CONTEXT_TOKENS = 64
LETTERS = "abcdefghijklmnop"

Reaction = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Target:
    """A folder with a tiny random model and a tokenizer, and what the model answers."""

    def __init__(self, folder: Path, decoder: TargetDecoder, stop_id: int):
        self.folder = folder
        self.stop_id = stop_id
        self.native = NativeEngine(decoder, NativeEngineConfig(), (stop_id,))
        self.chat = ChatTemplate(load_tokenizer(folder))

    def answers(self, requests: list[GenerationRequest]) -> list[Generation]:
        return list(self.native.generate(requests).generations)

    def text(self, prompt_ids: tuple[int, ...], answer_ids: tuple[int, ...]) -> str:
        """What a server shows: without the stop token."""
        return self.chat.decode_after(prompt_ids, [i for i in answer_ids if i != self.stop_id])


def requests_of(lengths: list[int], max_new_tokens: int = 12) -> list[GenerationRequest]:
    generator = torch.Generator().manual_seed(7)
    return [
        GenerationRequest(
            request_id=f"r{index}",
            prompt_ids=tuple(torch.randint(0, VOCAB_SIZE, (length,), generator=generator).tolist()),
            max_new_tokens=max_new_tokens,
        )
        for index, length in enumerate(lengths)
    ]


@pytest.fixture(scope="session")
def make_requests() -> Callable[..., list[GenerationRequest]]:
    """Requests with random prompts of the given lengths."""
    return requests_of


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            vocab_size=VOCAB_SIZE,
            max_position_embeddings=CONTEXT_TOKENS,
            initializer_range=0.3,
            eos_token_id=None,
        )
    ).save_pretrained(folder)
    return folder


def words(stop_id: int) -> Tokenizer:
    """Every id is a word, so a text has one spelling in ids."""
    pieces = {("</s>" if index == stop_id else f"w{index}"): index for index in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(pieces, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def pairs(stop_id: int) -> Tokenizer:
    """Ids are letters and pairs of letters, so most texts have many spellings."""
    spelled = [*LETTERS, *(a + b for a in LETTERS for b in LETTERS)]
    spelled += [f"<{number}>" for number in range(VOCAB_SIZE - 1 - len(spelled))]
    spelled.insert(stop_id, "</s>")
    merges = [(a, b) for a in LETTERS for b in LETTERS]
    tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate(spelled)}, merges))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(piece) for piece in spelled if piece.startswith("<")])
    return tokenizer


@pytest.fixture(scope="session")
def make_target(
    model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Callable[[int], Tokenizer]], Target]:
    """Build the target with a tokenizer. Its stop token is one that ends some answers and not others."""
    decoder = TargetDecoder.load(model_folder, torch.float32)
    unstopped = NativeEngine(decoder, NativeEngineConfig(), ()).generate(requests_of([3])).generations[0]
    stop_id = unstopped.answer_ids[5]

    def make(tokenizer: Callable[[int], Tokenizer]) -> Target:
        folder = tmp_path_factory.mktemp(tokenizer.__name__)
        for file in model_folder.iterdir():
            os.symlink(file, folder / file.name)
        (folder / "generation_config.json").unlink(missing_ok=True)
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [stop_id]}))
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer(stop_id), eos_token="</s>")
        fast.chat_template = "{% for m in messages %}{{ m['content'] }}</s>{% endfor %}"
        fast.save_pretrained(folder)
        return Target(folder, decoder, stop_id)

    return make


@pytest.fixture(scope="session")
def target(make_target: Callable[..., Target]) -> Target:
    """The target whose texts have one spelling."""
    return make_target(words)


@pytest.fixture(scope="session")
def ambiguous_target(make_target: Callable[..., Target]) -> Target:
    """The target whose texts have many spellings."""
    return make_target(pairs)


class FakeServer:
    """Serves one target the way a kind of server does. Reactions put before its answers make it misbehave."""

    def __init__(self, target: Target, kind: str, **traits: Any):
        self.target, self.kind, self.traits = target, kind, traits
        self.reactions: list[Reaction] = []
        """What happens to the next requests for an answer, one each; afterwards the server answers."""
        self.hook: Callable[[dict[str, Any]], Reaction | None] = lambda body: None
        """A reaction to requests of a certain body, for ever."""
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.running = self.most_running = self.disconnected = 0
        self.delay_s = 0.0
        self.url = ""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._post)
        if self.kind == "sglang":
            app.router.add_get("/get_server_info", self._version)
            app.router.add_post("/generate", self._post)
        if self.kind == "vllm":
            app.router.add_get("/version", self._version)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        owner = {"plain": "somebody"}.get(self.kind, self.kind)
        window = {} if self.kind == "plain" else {"max_model_len": self.traits.get("window", CONTEXT_TOKENS)}
        names = self.traits.get("models", ["tiny"])
        return web.json_response({"data": [{"id": name, "owned_by": owner, **window} for name in names]})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "1.2.3", "more": {"of": "it"}})

    async def _post(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.delay_s)
            reaction = self.hook(body) or (self.reactions.pop(0) if self.reactions else None)
            return await reaction(request) if reaction else self._answer(body)
        except asyncio.CancelledError:
            self.disconnected += 1
            raise
        finally:
            self.running -= 1

    def _answer(self, body: dict[str, Any]) -> web.Response:
        settings = body.get("sampling_params", body)
        prompt_ids = tuple(body["input_ids"] if self.kind == "sglang" else body["prompt"])
        limit = settings["max_new_tokens"] if self.kind == "sglang" else settings["max_tokens"]
        (answer,) = self.target.answers(
            [GenerationRequest(request_id="x", prompt_ids=prompt_ids, max_new_tokens=limit)]
        )
        ids, reason = list(answer.answer_ids), answer.finish_reason
        text = self.target.text(prompt_ids, answer.answer_ids)
        if self.kind == "sglang":
            finish = {"type": reason, **({"matched": ids[-1]} if reason == "stop" else {"length": limit})}
            meta = {"finish_reason": finish, "completion_tokens": len(ids)}
            return web.json_response({"text": text, "output_ids": ids, "meta_info": meta})
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": reason}
        if body.get("return_token_ids"):
            choice["token_ids"] = ids
        if "logprobs" in body and self.traits.get("pieces", True):
            choice["logprobs"] = {"tokens": [self.target.chat.decode([token_id]) for token_id in ids]}
        usage = {"usage": {"completion_tokens": len(ids)}} if self.traits.get("usage", True) else {}
        told = {"kv_transfer_params": self.traits["told"]} if "kv_transfer_params" in body else {}
        return web.json_response({"choices": [choice], **usage, **told})


@pytest.fixture
def serve(target: Target) -> Iterator[Callable[..., FakeServer]]:
    """Start servers on this machine; they stop with the test."""
    loop, runners = BackgroundLoop("fake servers"), []

    async def start(server: FakeServer) -> None:
        runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        runners.append(runner)
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    def serve(kind: str, target: Target = target, **traits: Any) -> FakeServer:
        server = FakeServer(target, kind, **traits)
        loop.start(start(server)).result(10)
        return server

    async def stop() -> None:
        for runner in runners:
            await runner.cleanup()

    yield serve
    loop.start(stop()).result(10)
    loop.close()


@pytest.fixture
def connect() -> Iterator[Callable[..., OpenAIEngine]]:
    """Connect engines to servers, with waits of a test; they are closed with it."""
    engines: list[OpenAIEngine] = []

    def connect(server: FakeServer, **settings: Any) -> OpenAIEngine:
        waits = {"first_retry_wait_s": 0.001, "longest_retry_wait_s": 0.01, "request_timeout_s": 20.0}
        config = OpenAIEngineConfig(**{"url": server.url, "max_retries": 2, **waits, **settings})
        engines.append(OpenAIEngine(config, server.target.folder))
        server.bodies.clear()
        server.headers.clear()
        return engines[-1]

    yield connect
    for engine in engines:
        engine.close()
