"""One answer over HTTP, with the time of every token: what a user of the server waits for."""

import json
import time
from collections.abc import Sequence
from typing import Any

import aiohttp
from pydantic import BaseModel

from eagleray.errors import EngineError
from eagleray.evaluation.endpoint.config import ArmConfig
from eagleray.settings import Settings
from eagleray.speculation.acceptance import Cycle


class Served(Settings):
    """One streamed answer. Seconds are from when the request was sent."""

    prompt_id: str
    family: str
    prompt_tokens: int
    tokens: int
    """As the server counted them; a chunk may hold several."""
    answer_ids: tuple[int, ...]
    """Empty where the server does not tell ids."""
    text: str
    finish_reason: str
    first_token_s: float
    chunk_s: tuple[float, ...]
    """When each chunk with text came; the first is `first_token_s`."""
    first_chunk_tokens: int
    end_s: float
    cycles: tuple[Cycle, ...]
    """Empty where the server does not tell."""

    @property
    def decode_s(self) -> float:
        """From the first token to the last: prefill and queue are not in it."""
        return self.chunk_s[-1] - self.chunk_s[0] if self.chunk_s else 0.0

    @property
    def decode_tokens(self) -> int:
        """Tokens that came in `decode_s`."""
        return max(0, self.tokens - self.first_chunk_tokens)

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Seconds between chunks."""
        return tuple(after - before for before, after in zip(self.chunk_s, self.chunk_s[1:], strict=False))


class _Delta(BaseModel):
    text: str = ""
    finish_reason: str | None = None
    token_ids: tuple[int, ...] = ()


class _Columns(BaseModel):
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    delivered: tuple[int, ...] = ()


class _Usage(BaseModel):
    completion_tokens: int


class _Chunk(BaseModel):
    choices: tuple[_Delta, ...] = ()
    usage: _Usage | None = None
    cycles: tuple[_Columns, ...] = ()
    error: dict[str, Any] | None = None


class EndpointClient:
    """Asks one server. `extensions` are fields that only our own server knows."""

    def __init__(self, arm: ArmConfig, session: aiohttp.ClientSession, timeout_s: float):
        self._arm = arm
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self.model = arm.model or ""
        self.extensions = False

    async def meet(self) -> dict[str, Any]:
        """Ask what is served, and the regime where the server tells one.

        Raises:
            EngineError: Nobody answers, or several models are served and none was named.
        """
        models = (await self._get("/v1/models"))["data"]
        names = [model["id"] for model in models]
        if self._arm.model is None and len(names) != 1:
            raise EngineError(f"{self._arm.url} serves {', '.join(names)}; name one as `model`.")
        self.model = self._arm.model or names[0]
        owner = next((model.get("owned_by") for model in models if model["id"] == self.model), None)
        self.extensions = owner == "eagleray"
        return (
            await self._get("/v1/regime") if self.extensions else {"engine": str(owner), "model": self.model}
        )

    async def engine_s(self) -> dict[str, float]:
        """Seconds that the server's engine worked, by what it did; empty where the server does not tell."""
        return dict((await self._get("/v1/speculation"))["engine_s"]) if self.extensions else {}

    async def answer(
        self,
        prompt_id: str,
        family: str,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        *,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Served:
        """Stream an answer, a greedy one unless `temperature` is above 0.

        Raises:
            EngineError: The server refused or broke off.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(prompt_ids),
            "max_tokens": max_new_tokens,
            "temperature": temperature,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"return_token_ids": True, "return_cycles": True} if self.extensions else {}),
        }
        reader = _Reader()
        try:
            async with self._session.post(
                f"{self._arm.url}/v1/completions", json=body, timeout=self._timeout
            ) as response:
                if response.status != 200:
                    text = (await response.text())[:200]
                    raise EngineError(f"{self._arm.url} answered HTTP {response.status}: {text}")
                async for line in response.content:
                    reader.take(line)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineError(f"{self._arm.url} broke off: {type(error).__name__}: {error}") from None
        return reader.served(prompt_id, family, len(prompt_ids), self._arm.url)

    async def _get(self, path: str) -> dict[str, Any]:
        try:
            async with self._session.get(self._arm.url + path, timeout=self._timeout) as response:
                response.raise_for_status()
                content: dict[str, Any] = await response.json()
                return content
        except (aiohttp.ClientError, TimeoutError, OSError, json.JSONDecodeError) as error:
            raise EngineError(
                f"{self._arm.url}{path} does not answer ({type(error).__name__}: {error}). Start the server "
                "(`make serve`), or correct the url."
            ) from None


class _Reader:
    """Puts the events of one answer together, with the time of each."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self._end_s = 0.0
        self._text = ""
        self._ids: tuple[int, ...] = ()
        self._first_ids = 0
        self._times: list[float] = []
        self._tokens: int | None = None
        self._finish_reason = ""
        self._cycles: tuple[Cycle, ...] = ()
        self._error = ""

    def take(self, line: bytes) -> None:
        """Read one line of the event stream."""
        if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
            return
        now_s = time.perf_counter() - self._began_s
        self._end_s = now_s
        chunk = _Chunk.model_validate_json(line.removeprefix(b"data: "))
        self._error = str((chunk.error or {}).get("message", self._error))
        for delta in chunk.choices:
            if delta.text or delta.token_ids:
                self._first_ids = self._first_ids or len(delta.token_ids) or 1
                self._times.append(now_s)
            self._text += delta.text
            self._ids += delta.token_ids
            self._finish_reason = delta.finish_reason or self._finish_reason
        if chunk.usage:
            self._tokens = chunk.usage.completion_tokens
        for columns in chunk.cycles:
            counts = zip(columns.drafted, columns.accepted, columns.delivered, strict=True)
            self._cycles = tuple(Cycle(drafted=d, accepted=a, delivered=n) for d, a, n in counts)

    def served(self, prompt_id: str, family: str, prompt_tokens: int, url: str) -> Served:
        """The whole answer.

        Raises:
            EngineError: It broke off, or its tokens were not counted.
        """
        if self._error or not self._finish_reason:
            raise EngineError(f"{url} broke off an answer: {self._error or 'the stream ended early'}.")
        if self._tokens is None:
            raise EngineError(
                f"{url} does not count the tokens of streamed answers (stream_options.include_usage), and "
                "counting chunks would be wrong. Use a server that does."
            )
        return Served(
            prompt_id=prompt_id,
            family=family,
            prompt_tokens=prompt_tokens,
            tokens=self._tokens,
            answer_ids=self._ids,
            text=self._text,
            finish_reason=self._finish_reason,
            first_token_s=self._times[0] if self._times else self._end_s,
            chunk_s=tuple(self._times),
            first_chunk_tokens=self._first_ids,
            end_s=self._end_s,
            cycles=self._cycles,
        )
