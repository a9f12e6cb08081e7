"""A vLLM of our own that answers for distilling, and captures the target's features while it does."""

import contextlib
import weakref
from pathlib import Path

import torch

from eagleray.engines.base import DraftSetting, Engine, RequestStream
from eagleray.engines.openai.config import OpenAIEngineConfig
from eagleray.engines.openai.engine import OpenAIEngine
from eagleray.engines.vllm.capture import HiddenStates
from eagleray.engines.vllm.captured import CapturedReader
from eagleray.engines.vllm.config import VllmConfig
from eagleray.engines.vllm.process import VllmServer
from eagleray.engines.vllm.scratch import scratch_folder
from eagleray.targets.geometry import TargetGeometry


class VllmEngine(Engine):
    """Starts a server and asks it over HTTP; hidden states come in files, each removed once it is read.

    Args:
        target_folder: Hugging Face folder of the target.
        capture_layers: Layers (outputs, 0-based, strictly increasing) whose features every answer brings;
            None captures nothing.

    Raises:
        EngineError: The environment holds no vLLM, or the server does not come up.
    """

    def __init__(
        self, config: VllmConfig, target_folder: Path, capture_layers: tuple[int, ...] | None = None
    ):
        with contextlib.ExitStack() as opened:
            self.scratch = opened.enter_context(scratch_folder())
            capture = None
            if capture_layers is not None:
                num_layers = TargetGeometry.read(target_folder).num_layers
                capture = HiddenStates(layers=capture_layers, num_layers=num_layers, folder=self.scratch)
            log = self.scratch / "server.log"
            self.server = opened.enter_context(VllmServer(config, target_folder, capture, log))
            self._engine = OpenAIEngine(
                _address(config, self.server), target_folder, _reader(capture, config, target_folder)
            )
            opened.callback(self._engine.close)
            self._close = weakref.finalize(self, opened.pop_all().close)

    def open_stream(
        self, *, draft: DraftSetting | None = None, capture_layers: tuple[int, ...] | None = None
    ) -> RequestStream:
        """Start an empty stream.

        Raises:
            EngineError: A drafter is asked for, or other layers than the server was started with.
        """
        return self._engine.open_stream(draft=draft, capture_layers=capture_layers)

    def close(self) -> None:
        """Stop the server and remove its files; happens too once nobody can ask any more."""
        self._close()


def _address(config: VllmConfig, server: VllmServer) -> OpenAIEngineConfig:
    # It is on this machine: what does not answer at once is gone.
    return OpenAIEngineConfig(
        url=server.url,
        max_concurrency=config.max_concurrency,
        request_timeout_s=config.request_timeout_s,
        max_retries=1,
    )


def _reader(capture: HiddenStates | None, config: VllmConfig, target: Path) -> CapturedReader | None:
    if capture is None:
        return None
    return CapturedReader(capture, target, getattr(torch, config.dtype), config.request_timeout_s)
