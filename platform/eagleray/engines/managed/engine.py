"""An engine that runs as a process of ours: its server, and a stream of its answers."""

import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import aiohttp

from eagleray.corpus.answer_text import Decode
from eagleray.engines.catalog import start_server
from eagleray.engines.config import ServedEngineConfig
from eagleray.engines.limits import RequestLimits
from eagleray.engines.managed.answering import ManagedAnswering
from eagleray.engines.managed.dialogues import dialogue_with
from eagleray.engines.openai.background import BackgroundLoop
from eagleray.engines.openai.stream import ServerStream
from eagleray.engines.served import Drafting
from eagleray.targets.geometry import TargetGeometry

log = logging.getLogger(__name__)

WAIT_S = 0.01
"""Longest time that `advance` waits: streams of two servers take turns in one thread."""
_LONGEST_LINE_BYTES = 2**22


class ManagedEngine:
    """A running server with one drafter, or with none.

    Args:
        target_folder: Hugging Face folder of the target.
        log_file: Takes everything the server prints.
        show: Text of ids, for stop strings.

    Raises:
        EngineError: The environment holds no such engine, it cannot draft like that, or the server does not
            come up.
        ArtifactError: The drafter's folder is not one that this program exported.
    """

    def __init__(
        self,
        config: ServedEngineConfig,
        target_folder: Path,
        drafting: Drafting | None,
        log_file: Path,
        show: Decode,
    ):
        geometry = TargetGeometry.read(target_folder)
        self.server = start_server(config, target_folder, drafting, log_file)
        self._told = False
        with ExitStack() as undo:
            undo.callback(self.server.stop)
            self._loop = BackgroundLoop(f"answers of {self.server.name}")
            undo.callback(self._loop.close)
            session = self._loop.enter(_open_session(config.request_timeout_s))
            answering = ManagedAnswering(
                self.server,
                dialogue_with(self.server, drafts=drafting is not None),
                session,
                RequestLimits(
                    vocab_size=geometry.vocab_size,
                    context_window_tokens=window_tokens(config, geometry),
                ),
                geometry.stop_token_ids,
                show,
                drafts=drafting is not None,
            )
            self.stream = ServerStream(answering, self._loop, WAIT_S)
            self._undo = undo.pop_all()

    def fault(self) -> str | None:
        """Why it serves no more; None while its process runs. The log's end goes to our log, once."""
        if (code := self.server.ended) is None:
            return None
        reason = f"{self.server.name} ended with exit code {code}"
        if not self._told:
            self._told = True
            log.error("%s.%s", reason, self.server.log_end())
        return reason

    def close(self) -> None:
        """Withdraw what is unfinished, and end the server with all it started. A second call does nothing."""
        self._undo.close()


def window_tokens(config: ServedEngineConfig, geometry: TargetGeometry) -> int:
    """Prompt and answer together, in tokens."""
    return min(config.max_length, geometry.max_position_embeddings)


@asynccontextmanager
async def _open_session(request_timeout_s: float) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)  # the server has a queue of its own
    timeout = aiohttp.ClientTimeout(total=request_timeout_s)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, read_bufsize=_LONGEST_LINE_BYTES
    ) as session:
        yield session
