"""The HTTP of a served engine, as an ASGI application: routes, bodies, authentication, errors as JSON."""

import asyncio
import hmac
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from eagleray.errors import ConfigError
from eagleray.serving.account import speculation_headers
from eagleray.serving.asks import Ask
from eagleray.serving.refusals import (
    EngineFailedError,
    NotAllowedError,
    RefusalError,
    TooLargeError,
    WrongMediaTypeError,
)
from eagleray.serving.replies import DONE, Replies, event
from eagleray.serving.requests import ChatRequest, CompletionRequest, Generate, read_request
from eagleray.serving.service import Service

LARGE_BODY_BYTES = 16 * 2**10
"""Bodies above this are read and tokenised in a thread, so that other answers keep flowing."""
CLOSED_BY_CLIENT = 499
"""Status of answers that nobody waits for any more; it is in logs alone."""

ResultT = TypeVar("ResultT")
RequestT = TypeVar("RequestT", bound=Generate)


def build_http(service: Service) -> Starlette:
    """Make the application.

    Raises:
        ConfigError: The variable of the bearer token is not set.
    """
    routes = Routes(service, _api_key(service.config.api_key_env))
    return Starlette(
        routes=[
            Route("/v1/chat/completions", routes.chat, methods=["POST"]),
            Route("/v1/completions", routes.completions, methods=["POST"]),
            Route("/v1/models", routes.models, methods=["GET"]),
            Route("/v1/models/{model:path}", routes.model, methods=["GET"]),
            Route("/v1/regime", routes.regime, methods=["GET"]),
            Route("/v1/speculation", routes.speculation, methods=["GET"]),
            Route("/health", routes.health, methods=["GET"]),
        ],
        exception_handlers={
            RefusalError: _refused,
            HTTPException: _no_such_route,
            ClientDisconnect: _gone,
            Exception: _broken,
        },
    )


class Routes:
    """What each path does."""

    def __init__(self, service: Service, api_key: str | None):
        self._service = service
        self._api_key = api_key

    async def chat(self, request: Request) -> Response:
        """Answer a chat."""
        return await self._answer(request, ChatRequest, self._service.asking.chat)

    async def completions(self, request: Request) -> Response:
        """Continue a prompt."""
        return await self._answer(request, CompletionRequest, self._service.asking.completion)

    async def models(self, request: Request) -> Response:
        """List the one model."""
        self._require_key(request)
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """Describe the one model."""
        self._require_key(request)
        if request.path_params["model"] != self._service.config.model:
            raise HTTPException(404)
        return JSONResponse(self._model())

    async def regime(self, request: Request) -> Response:
        """Tell what numbers measured here depend on."""
        self._require_key(request)
        return JSONResponse(self._service.regime)

    async def speculation(self, request: Request) -> Response:
        """Tell what was served so far, and the acceptance of now."""
        self._require_key(request)
        service = self._service
        return JSONResponse(
            {
                **service.account.facts(),
                "engine_s": service.engine_s,
                "unfinished": service.unfinished,
                "swaps": service.swaps,
            }
        )

    async def health(self, request: Request) -> Response:
        """200 while tokens flow, 503 when only a restart helps. Needs no token."""
        health = self._service.health
        status = 200 if health.serves else 503
        return JSONResponse({"status": health.status, "reason": health.reason}, status)

    async def _answer(
        self, request: Request, schema: type[RequestT], ask: Callable[[RequestT], Ask]
    ) -> Response:
        self._require_key(request)
        body = await self._body(request)

        def read() -> tuple[RequestT, Ask]:
            content = read_request(schema, body)
            return content, ask(content)

        content, asked = await asyncio.to_thread(read) if len(body) > LARGE_BODY_BYTES else read()
        if self._service.capture:
            self._service.capture.add(content)
        replies = self._service.replies(asked)
        if asked.stream:
            return await self._stream(request, asked, replies)
        return await _unless_gone(request, self._whole(asked, replies))

    async def _whole(self, ask: Ask, replies: Replies) -> Response:
        async with self._service.answers(ask) as answers:
            async for _ in answers.pieces():
                pass
        return JSONResponse(replies.whole(answers), headers=speculation_headers(answers.cycles))

    async def _stream(self, request: Request, ask: Ask, replies: Replies) -> Response:
        """Answer in events. What fails before the first one is an HTTP error, afterwards an event."""
        events = self._events(ask, replies)
        first = await _unless_gone(request, _next(events))

        async def all_events() -> AsyncIterator[bytes]:
            try:
                yield first
                async for more in events:
                    yield more
            except RefusalError as refusal:
                yield event(refusal.body())
            finally:
                # At once, not when the garbage is collected: a client that left must free its slot.
                await events.aclose()

        return StreamingResponse(
            all_events(), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    async def _events(self, ask: Ask, replies: Replies) -> AsyncGenerator[bytes]:
        async with self._service.answers(ask) as answers:
            head = b"".join(map(event, replies.first()))
            async for pieces in answers.pieces():
                # Every message to the proxy has its price, so what came together goes together.
                yield head + b"".join(event(replies.piece(piece)) for piece in pieces)
                head = b""
            last = replies.last(answers)
            yield head + (event(last) if last else b"") + DONE

    async def _body(self, request: Request) -> bytes:
        media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise WrongMediaTypeError("The body must be JSON; send content-type: application/json.")
        bound = self._service.config.limits.max_body_bytes
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > bound:
                raise TooLargeError(f"The body is larger than {bound} bytes.", code="body_too_large")
        return bytes(body)

    def _require_key(self, request: Request) -> None:
        if self._api_key is None:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            key.strip().encode(), self._api_key.encode()
        ):
            raise NotAllowedError("The bearer token is missing or wrong.", code="invalid_api_key")

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._service.config.model,
            "object": "model",
            "created": self._service.started_at,
            "owned_by": "eagleray",
            "max_model_len": self._service.context_window_tokens,
        }


async def _unless_gone(request: Request, answer: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Wait for an answer as long as the client does.

    Raises:
        ClientDisconnect: The client has gone; the answer is cancelled.
    """
    task = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _next(events: AsyncIterator[bytes]) -> bytes:
    return await anext(events)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refused(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, RefusalError)
    return JSONResponse(refusal.body(), refusal.status, headers=refusal.headers())


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = {404: "There is no such route or model.", 405: "This route does not take that method."}.get(
        error.status_code, error.detail
    )
    body = RefusalError(message, code=str(error.status_code)).body()
    return JSONResponse(body, error.status_code, headers=error.headers)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLOSED_BY_CLIENT)


async def _broken(request: Request, error: Exception) -> Response:
    """A fault of ours: the log gets the traceback, the client none of it."""
    return JSONResponse(
        EngineFailedError("The server failed on this request; its log has the reason.").body(), 500
    )


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not (key := os.environ.get(variable)):
        raise ConfigError(
            f"The environment variable {variable}, named in api_key_env, is not set where the replica runs. "
            "Set it there, or remove api_key_env to serve without a token on loopback."
        )
    return key
