"""HTTP with one server: patient with what passes, plain about what does not.

A lost connection, no answer in time, HTTP 429 and 5xx, and answers that are not what the route gives
are faults: they are tried again. Other HTTP errors are about the request or about the address.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import aiohttp
from pydantic import ValidationError

from eagleray.engines.openai.backoff import retry_after_s, retry_wait_s
from eagleray.engines.openai.config import OpenAIEngineConfig
from eagleray.errors import EngineError

SHOWN_CHARACTERS = 200
"""Length to which a server's own words are cut."""

_TRY_AGAIN = frozenset({408, 425, 429})
_KEY_REFUSED = frozenset({401, 403})
_NOT_THERE = frozenset({404, 405})

ReplyT = TypeVar("ReplyT")
Read = Callable[[bytes], ReplyT]
"""Makes something of the body of a response; `ServerFaultError` and ValidationError ask for another try."""


class ServerFaultError(Exception):
    """The server did not answer as it should; another try may succeed."""

    def __init__(self, reason: str, wait_s: float = 0.0):
        super().__init__(reason)
        self.wait_s = wait_s
        """What the server asked to wait before another try."""


class RefusalError(Exception):
    """The server will never answer this request. The message is its own."""


@dataclass(frozen=True)
class _Call:
    method: str
    path: str
    body: dict[str, Any] | None
    timeout_s: float


class ServerClient:
    """Requests to one server, within the event loop of its session."""

    def __init__(self, config: OpenAIEngineConfig, session: aiohttp.ClientSession):
        self.config = config
        self._session = session
        self._slots = asyncio.Semaphore(config.max_concurrency)

    async def get(self, path: str, read: Read[ReplyT]) -> ReplyT:
        """Read a resource, trying again while it may help.

        Raises:
            ServerFaultError: The last try failed too.
            RefusalError: The server refuses the request.
            EngineError: It refuses the key, or has no such route.
        """
        return await self._patiently(_Call("GET", path, None, self.config.connect_timeout_s), read)

    async def post(self, path: str, body: dict[str, Any], read: Read[ReplyT], *, patient: bool) -> ReplyT:
        """Send a request; see `get`.

        Args:
            patient: Whether to try again.
        """
        call = _Call("POST", path, body, self.config.request_timeout_s)
        if patient:
            return await self._patiently(call, read)
        async with self._slots:
            return await self._once(call, read)

    async def _patiently(self, call: _Call, read: Read[ReplyT]) -> ReplyT:
        async with self._slots:
            started_s = time.monotonic()
            for retry in range(self.config.max_retries):
                try:
                    return await self._once(call, read)
                except ServerFaultError as fault:
                    if time.monotonic() - started_s >= call.timeout_s:
                        raise
                    await asyncio.sleep(retry_wait_s(self.config, retry, fault.wait_s))
            return await self._once(call, read)

    async def _once(self, call: _Call, read: Read[ReplyT]) -> ReplyT:
        timeout = aiohttp.ClientTimeout(total=call.timeout_s, sock_connect=self.config.connect_timeout_s)
        url = self.config.url + call.path
        try:
            async with self._session.request(call.method, url, json=call.body, timeout=timeout) as response:
                content = await response.read()
        except TimeoutError:
            raise ServerFaultError(f"no answer within {call.timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ServerFaultError(f"{type(error).__name__}: {error}") from None
        if response.status >= 300:
            self._refuse(response, call.path, _message(content))
        try:
            return read(content)
        except ValidationError as error:
            raise ServerFaultError(f"a body that is not one of {call.path} ({_problem(error)})") from None

    def _refuse(self, response: aiohttp.ClientResponse, path: str, message: str) -> NoReturn:
        said = f"HTTP {response.status}: {message}"
        if response.status >= 500 or response.status in _TRY_AGAIN:
            raise ServerFaultError(said, retry_after_s(response.headers.get("Retry-After")))
        if response.status in _KEY_REFUSED:
            raise EngineError(
                f"The server at {self.config.url} refuses the API key ({said}). Set `api_key_env` of this "
                f"engine (now {self.config.api_key_env!r}) to the environment variable that holds the key."
            )
        if response.status in _NOT_THERE:
            raise EngineError(
                f"The server at {self.config.url} does not know {path} or the model ({said}). Check `url` "
                "and `model` of this engine."
            )
        raise RefusalError(said)


@asynccontextmanager
async def open_client(config: OpenAIEngineConfig) -> AsyncIterator[ServerClient]:
    """Open a client; requests that are under way when it is closed are lost.

    Raises:
        EngineError: The variable of the API key is not set.
    """
    connector = aiohttp.TCPConnector(limit=0)  # the client's own slots are the one bound
    async with aiohttp.ClientSession(headers=_headers(config), connector=connector) as session:
        yield ServerClient(config, session)


def _headers(config: OpenAIEngineConfig) -> dict[str, str]:
    if config.api_key_env is None:
        return {}
    key = os.environ.get(config.api_key_env)
    if not key:
        raise EngineError(
            f"The environment variable {config.api_key_env}, named in `api_key_env` of the engine at "
            f"{config.url}, is not set in this process. Set it where the job and its workers start."
        )
    return {"Authorization": f"Bearer {key}"}


def _message(content: bytes) -> str:
    """What a server says in its own words, in whichever of the usual fields it stands."""
    text = content.decode("utf-8", errors="replace")
    try:
        said = json.loads(text)
    except ValueError:
        said = text
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and said.get(key):
            said = said[key]
    return " ".join(str(said).split())[:SHOWN_CHARACTERS]


def _problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    place = ".".join(map(str, problem["loc"]))
    return f"{place}: {problem['msg']}" if place else str(problem["msg"])
