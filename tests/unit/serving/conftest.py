"""A served engine whose answers are written down, and clients for it: in memory, and over a real socket."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest
import uvicorn

from eagleray.corpus.answer_text import AnswerText, Decode
from eagleray.corpus.chat import ChatTemplate
from eagleray.engines.base import (
    EngineTimes,
    FailedRequest,
    Generation,
    GenerationRequest,
    TokenScore,
)
from eagleray.engines.limits import RequestLimits
from eagleray.errors import EngineError
from eagleray.serving.config import DraftConfig, ServeConfig
from eagleray.serving.http import build_http
from eagleray.serving.service import Lane, Service
from eagleray.speculation.acceptance import Cycle
from eagleray.targets.embedded import prepare_embedded
from eagleray.targets.loading import load_tokenizer

END = 2
WINDOW = 64


class Running:
    """An answer of the script that grows token by token."""

    def __init__(self, request: GenerationRequest, script: Sequence[int], room: int, show: Decode):
        self.request = request
        self.rest = list(script[:room])
        self.ids: list[int] = []
        self.told = 0
        self.cycles: list[Cycle] = []
        self.finish_reason: str | None = None
        self.text = AnswerText(show, request.prompt_ids, request.stop_strings)

    def step(self, block: int) -> int:
        """One cycle of a drafter that is always right; the first token comes from prefill."""
        count = block + 1 if self.ids else 1
        new = []
        while len(new) < count and self.finish_reason is None:
            new.append(self.rest.pop(0))
            self.text.push(new[-1:])
            if new[-1] == END or self.text.stopped_by is not None:
                self.finish_reason = "stop"
            elif not self.rest:
                self.finish_reason = "length"
        if self.ids:
            self.cycles.append(Cycle(drafted=block, accepted=min(len(new), block), delivered=len(new)))
        self.ids += new
        return len(new)


class ScriptedStream:
    """Emits a written answer, `block` + 1 tokens a cycle after the first. Behind the end of turn the script
    goes on: that is what a stop must cut."""

    times = EngineTimes(prefill_s=0, draft_s=0, verify_s=0, host_s=0)

    def __init__(self, script: Sequence[int], show: Decode, block: int = 0):
        self.script = script
        self.block = block
        self.delivered_tokens = 0
        self.seen: list[GenerationRequest] = []
        self.cancelled: list[str] = []
        self.gate = threading.Event()
        """While cleared, no cycle runs."""
        self.gate.set()
        self.broken = False
        self.failing: str | None = None
        self._show = show
        self._limits = RequestLimits(vocab_size=49152, context_window_tokens=WINDOW)
        self._running: dict[str, Running] = {}

    @property
    def unfinished(self) -> int:
        return len(self._running)

    def submit(self, request: GenerationRequest) -> None:
        self._limits.check_request(request)
        self.seen.append(request)
        room = self._limits.room(request)
        self._running[request.request_id] = Running(request, self.script, room, self._show)

    def new_ids(self) -> dict[str, tuple[int, ...]]:
        new = {}
        for request_id, running in self._running.items():
            new[request_id] = tuple(running.ids[running.told :])
            running.told = len(running.ids)
        return new

    def cancel(self, request_id: str) -> None:
        if self._running.pop(request_id, None):
            self.cancelled.append(request_id)

    def advance(self) -> list[Generation | FailedRequest]:
        self.gate.wait()
        if self.broken:
            raise EngineError("planted: the engine broke")
        outcomes = []
        for request_id, running in list(self._running.items()):
            if self.failing is not None:
                del self._running[request_id]
                outcomes.append(FailedRequest(request_id=request_id, reason=self.failing))
                continue
            self.delivered_tokens += running.step(self.block)
            if running.finish_reason:
                del self._running[request_id]
                outcomes.append(generation_of(running))
        return outcomes


def generation_of(running: Running) -> Generation:
    asked = running.request.log_probabilities
    score = TokenScore(chosen=-0.5, likeliest=tuple((token, -1.0 - token) for token in range(asked or 0)))
    return Generation(
        request_id=running.request.request_id,
        prompt_ids=running.request.prompt_ids,
        answer_ids=tuple(running.ids),
        finish_reason=running.finish_reason,
        cycles=tuple(running.cycles),
        stop_string=running.text.stopped_by,
        scores=None if asked is None else (score,) * len(running.ids),
    )


@pytest.fixture(scope="session")
def chat() -> ChatTemplate:
    return ChatTemplate(load_tokenizer(prepare_embedded()))


class Client:
    """Sends requests to a service through its ASGI application, each in an event loop of its own."""

    def __init__(self, service: Service, stream: ScriptedStream):
        self.service = service
        self.stream = stream
        self.app = build_http(service)

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.send_all([(method, path, options)])[0]

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.send("POST", path, json=body, **options)

    def complete(self, **body: Any) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": "Hi", "max_tokens": 40, "temperature": 0, **body})

    def complete_with(self, headers: dict[str, str]) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": "Hi"}, headers=headers)

    def send_all(self, requests: Sequence[tuple[str, str, dict[str, Any]]]) -> list[httpx.Response]:
        """Send requests at the same time."""

        async def together() -> list[httpx.Response]:
            # A fault of the server is an HTTP response here, as it is over a socket.
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                sent = (client.request(method, path, **options) for method, path, options in requests)
                return list(await asyncio.gather(*sent))

        return asyncio.run(together())


@pytest.fixture
def serve(chat: ChatTemplate) -> Iterator[Callable[..., Client]]:
    """Serve a text or ids; settings are those of `ServeConfig`. Drafters that are swapped in run `others`."""
    services: list[Service] = []

    def start(
        answer: str | Sequence[int] = "one two three",
        *,
        block: int = 0,
        others: Sequence[ScriptedStream] = (),
        **settings: Any,
    ) -> Client:
        ids = chat.encode(answer) if isinstance(answer, str) else tuple(answer)
        stream = ScriptedStream((*ids, END, *ids, *[9] * WINDOW), chat.show, block)
        config = ServeConfig.model_validate({"model": "scripted", **settings})
        lanes = iter((stream, *others))

        def open_lane(draft: DraftConfig | None) -> Lane:
            facts = {"draft": draft and draft.depth}
            return Lane(name=f"lane-{draft}", stream=next(lanes), draft=draft, facts=facts)

        service = Service(config, open_lane, chat, WINDOW, {"engine": "scripted"})
        services.append(service)
        return Client(service, stream)

    yield start
    for service in services:
        service.close()


@pytest.fixture
def listen() -> Iterator[Callable[[Client], str]]:
    """Listen on a port of loopback; returns the address."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(client: Client) -> str:
        config = uvicorn.Config(client.app, port=0, log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
        running.append((server, thread))
        port = server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(10)


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a streamed answer, which must end in [DONE]."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.fixture
def events() -> Callable[[httpx.Response], list[dict[str, Any]]]:
    return events_of


@pytest.fixture
def scripted(chat: ChatTemplate) -> Callable[..., ScriptedStream]:
    """A stream of a text, for a drafter that is swapped in."""

    def make(answer: str, block: int) -> ScriptedStream:
        return ScriptedStream((*chat.encode(answer), END, *[9] * WINDOW), chat.show, block)

    return make
