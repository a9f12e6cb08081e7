"""An event loop in a thread of its own, for callers that are not coroutines."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class BackgroundLoop:
    """Runs coroutines until it is closed. The thread never keeps a process alive."""

    def __init__(self, name: str):
        self._loop = asyncio.new_event_loop()
        self._entered = AsyncExitStack()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, ResultT]) -> "Future[ResultT]":
        """Start a coroutine; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def enter(self, context: AbstractAsyncContextManager[ResultT]) -> ResultT:
        """Enter a context that is left when the loop is closed."""
        return self.start(self._entered.enter_async_context(context)).result()

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel what runs, leave what was entered, and end the thread."""
        self.start(self._wind_up()).result(timeout_s)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)
        self._loop.close()

    async def _wind_up(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._entered.aclose()
