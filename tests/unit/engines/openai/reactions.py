"""Ways in which a server misbehaves."""

import asyncio
from typing import Any

from aiohttp import web


def status(code: int, message: Any = "busy", **headers: str) -> Any:
    async def react(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": message}}, status=code, headers=headers)

    return react


def body(text: str) -> Any:
    async def react(request: web.Request) -> web.Response:
        return web.Response(text=text, content_type="application/json")

    return react


async def hang_up(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    await asyncio.sleep(5)
    raise AssertionError


async def sleep_on(request: web.Request) -> web.Response:
    await asyncio.sleep(30)
    raise AssertionError
