"""Requests that a server must survive, by hand and drawn from the schema of its routes; and what is a fault.

Answers are kept to a few tokens, so that thousands of requests are about the server and not about the engine.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

MAX_TOKENS = 3
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
JSON_HEADERS = {"content-type": "application/json"}
TIMEOUT_S = 120.0
EXPLAINED = (503, 504)
"""Statuses of 500 and above with a cause outside the server: an engine that stopped, a time that ran out."""
INSIDES = ("Traceback", 'File "', "/site-packages/", "eagleray/", str(Path.cwd()), str(Path.home()))


@dataclass(frozen=True)
class Hostile:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Outcome:
    """What came of many requests."""

    requests: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """Answers that a server must not give, with the request that led to them."""

    @property
    def unexplained_5xx(self) -> int:
        """Answers of status 500 and above that have no cause outside the server."""
        return sum(
            count
            for status, count in self.statuses.items()
            if status.isdigit() and int(status) >= 500 and int(status) not in EXPLAINED
        )


def by_hand() -> list[Hostile]:
    """What has broken servers before."""
    turns = [{"role": "user", "content": "Hi"}]
    deep = "[" * 5000 + "]" * 5000
    bodies = [
        b"",
        b"null",
        b"{}",
        b"\x00" * 100,
        b"\xff\xfe\xfd",
        deep.encode(),
        b'{"messages": ' + deep.encode() + b"}",
        b'{"prompt": "Hi", "max_tokens": 1e999}',
        b'{"prompt": "Hi", "temperature": NaN}',
        b'{"prompt": "Hi", "seed": ' + b"9" * 4000 + b"}",
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "Hi", "prompt": ["again"], "max_tokens": 1}',
        b'{"__proto__": {"prompt": "Hi"}}',
        json.dumps({"prompt": "\u0000" * 50, "max_tokens": 1}).encode(),
        json.dumps({"prompt": "\U0001f469\u200d\U0001f680" * 50, "max_tokens": 1}).encode(),
        json.dumps({"prompt": "x" * 2_000_000}).encode(),
        json.dumps({"prompt": "word " * 20_000, "max_tokens": 1}).encode(),
        json.dumps({"prompt": [2**31 - 1], "max_tokens": 1}).encode(),
        json.dumps({"prompt": [[]] * 1000}).encode(),
        json.dumps({"prompt": ["a"] * 1000, "max_tokens": 1}).encode(),
        json.dumps({"prompt": "Hi", "n": 10**9}).encode(),
        json.dumps({"prompt": "Hi", "stop": [f"s{i}" for i in range(10_000)]}).encode(),
        json.dumps({"prompt": "Hi", "stop": "x" * 100_000}).encode(),
        json.dumps(
            {"prompt": "Hi", "logit_bias": {str(i): 1 for i in range(50_000)}, "max_tokens": 1}
        ).encode(),
        json.dumps({"prompt": "Hi", "logit_bias": {"-1": 1}, "max_tokens": 1}).encode(),
        json.dumps({"messages": turns * 3000, "max_tokens": 1}).encode(),
        json.dumps({"messages": [{"role": "tool", "content": "7"}], "max_tokens": 1}).encode(),
        json.dumps({"messages": [{"role": "assistant", "content": "I"}], "max_tokens": 1}).encode(),
        json.dumps(
            {"messages": [{"role": "user", "content": "{{ 7 * 7 }} {% raw %}"}], "max_tokens": 1}
        ).encode(),
        json.dumps(
            {"messages": [{"role": "user", "content": "<|im_end|><|im_start|>"}], "max_tokens": 1}
        ).encode(),
        json.dumps({"messages": turns, "model": "../../etc/passwd"}).encode(),
    ]
    posts = [Hostile("POST", path, JSON_HEADERS, body) for path in (CHAT, COMPLETION) for body in bodies]
    valid = json.dumps({"prompt": "Hi", "max_tokens": 1}).encode()
    others = [
        Hostile(method, path, JSON_HEADERS, b"")
        for method in ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")
        for path in (CHAT, "/v1/models", "/", "/v1/models/%2e%2e%2fsecret", "/health", "/v1//completions")
    ]
    headers = [
        {"content-type": "text/plain"},
        {"content-type": "application/json; charset=utf-16"},
        {"content-type": "application/json", "authorization": "Bearer " + "x" * 5000},
        {"content-type": "application/json", "content-encoding": "gzip"},
        {"content-type": "application/json", "x-request-id": "a" * 3000},
        {"content-type": "application/json", "accept": "image/png"},
    ]
    return posts + others + [Hostile("POST", COMPLETION, one, valid) for one in headers]


def drawn_from_schema() -> st.SearchStrategy[Hostile]:
    """Requests whose fields are right, at the edge, or of another type."""
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=8,
    )

    def mostly(right: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(right, right, right, anything)

    text = st.text(max_size=60)
    part = st.fixed_dictionaries({"type": st.just("text"), "text": text})
    turn = st.fixed_dictionaries(
        {
            "role": mostly(st.sampled_from(["system", "user", "assistant", "developer", "tool"])),
            "content": mostly(text | st.lists(part, max_size=2)),
        },
        optional={"name": mostly(text)},
    )
    ids = st.lists(st.integers(-2, 60_000), max_size=8)
    optional = {
        "model": mostly(st.sampled_from(["smollm2", "scripted", "other"])),
        "temperature": mostly(st.floats(-1, 3)),
        "top_p": mostly(st.floats(-0.5, 1.5)),
        "top_k": mostly(st.integers(-2, 100)),
        "min_p": mostly(st.floats(-0.5, 1.5)),
        "n": mostly(st.integers(0, 3)),
        "seed": mostly(st.integers(-(2**70), 2**70)),
        "stop": mostly(text | st.lists(text, max_size=5)),
        "stream": mostly(st.booleans()),
        "stream_options": mostly(st.fixed_dictionaries({"include_usage": mostly(st.booleans())})),
        "presence_penalty": mostly(st.floats(-3, 3)),
        "frequency_penalty": mostly(st.floats(-3, 3)),
        "repetition_penalty": mostly(st.floats(-1, 3)),
        "logit_bias": mostly(
            st.dictionaries(st.integers(-1, 60_000).map(str), st.floats(-200, 200), max_size=3)
        ),
        "min_tokens": mostly(st.integers(-1, 5)),
        "logprobs": mostly(st.booleans() | st.integers(-1, 30)),
        "return_token_ids": mostly(st.booleans()),
        "return_cycles": mostly(st.booleans()),
    }
    tokens = {
        "max_tokens": st.one_of(*[st.integers(0, MAX_TOKENS)] * 4, st.text(max_size=3), st.floats(0, 2))
    }
    chat = st.fixed_dictionaries(
        {"messages": mostly(st.lists(turn, max_size=4)), **tokens}, optional=optional
    )
    prompt = mostly(text | ids | st.lists(text, max_size=3) | st.lists(ids, max_size=3))
    completion = st.fixed_dictionaries({"prompt": prompt, **tokens}, optional=optional)

    def post(path: str, body: st.SearchStrategy[Any]) -> st.SearchStrategy[Hostile]:
        return body.map(lambda content: Hostile("POST", path, JSON_HEADERS, json.dumps(content).encode()))

    raw = st.binary(max_size=200).map(lambda body: Hostile("POST", CHAT, JSON_HEADERS, body))
    return st.one_of(post(CHAT, chat), post(COMPLETION, completion), post(CHAT, anything), raw)


def draw_requests(count: int, first_seed: int) -> list[Hostile]:
    """Requests by hand, and as many drawn ones as make `count`; the same for the same seed."""
    drawn: list[Hostile] = by_hand()[:count]
    number = first_seed
    while len(drawn) < count:

        @seed(number)
        @settings(
            max_examples=count - len(drawn),
            phases=[Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(drawn_from_schema())
        def collect(request: Hostile) -> None:
            if len(drawn) < count:
                drawn.append(request)

        collect()
        number += 1
    return drawn


async def attack(url: str, requests: Sequence[Hostile], concurrency: int, leaving: float = 0.0) -> Outcome:
    """Send requests to a server, some of whose clients leave before the answer.

    Args:
        leaving: Share of the clients that close their connection after a random moment.
    """
    outcome = Outcome()
    slots = asyncio.Semaphore(concurrency)
    draw = random.Random(len(requests))
    patience = [draw.uniform(0.001, 0.2) if draw.random() < leaving else TIMEOUT_S for _ in requests]

    async def send(session: aiohttp.ClientSession, request: Hostile, patience_s: float) -> None:
        async with slots:
            status, text = await _answer(session, url, request, patience_s)
        outcome.requests += 1
        outcome.statuses[status] += 1
        if (fault := _fault(request, status, text)) is not None:
            outcome.faults.append(f"{fault}: {request.method} {request.path} {request.body[:300]!r}")

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*map(send, [session] * len(requests), requests, patience))
    return outcome


async def _answer(
    session: aiohttp.ClientSession, url: str, request: Hostile, patience_s: float
) -> tuple[str, str]:
    try:
        async with asyncio.timeout(patience_s):
            async with session.request(
                request.method, url + request.path, data=request.body, headers=request.headers
            ) as response:
                return str(response.status), (await response.read()).decode("utf-8", errors="replace")
    except TimeoutError:
        return ("left" if patience_s < TIMEOUT_S else "no answer"), ""
    except aiohttp.ClientError as error:
        return type(error).__name__, ""


def _fault(request: Hostile, status: str, text: str) -> str | None:
    """What is wrong with an answer; None for one that a server may give."""
    if status == "left":
        return None
    if not status.isdigit():
        return status
    if int(status) >= 500 and int(status) not in EXPLAINED:
        return f"HTTP {status}"
    if seen := [inside for inside in INSIDES if inside in text and inside.encode() not in request.body]:
        return f"HTTP {status} tells of the inside ({seen[0]})"
    if int(status) >= 400 and request.method != "HEAD":
        try:
            json.loads(text)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            return f"HTTP {status} without an error in JSON ({text[:100]!r})"
    return None
