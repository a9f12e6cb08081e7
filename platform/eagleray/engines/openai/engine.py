"""The engine over HTTP: a server runs the target, and its emitted ids are the answers."""

import dataclasses
import weakref
from contextlib import ExitStack
from pathlib import Path

from eagleray.corpus.chat import ChatTemplate
from eagleray.engines.base import DraftSetting, Engine, GenerationRequest, RequestStream
from eagleray.engines.limits import RequestLimits
from eagleray.engines.openai.answering import Answering, FeatureReader
from eagleray.engines.openai.background import BackgroundLoop
from eagleray.engines.openai.client import ServerClient, open_client
from eagleray.engines.openai.config import OpenAIEngineConfig
from eagleray.engines.openai.dialects import CapturingVllmDialect
from eagleray.engines.openai.retokenise import Retokeniser
from eagleray.engines.openai.server import Server, find_server, probe_server
from eagleray.engines.openai.stream import ServerStream
from eagleray.errors import EngineError
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.loading import load_tokenizer


class OpenAIEngine(Engine):
    """Runs the target on a server that is already there.

    Args:
        target_folder: Where the target's configuration and tokenizer lie; its weights are not read.
        features: The server is a vLLM that captures features of every answer, and this reads them.

    Raises:
        EngineError: Nobody answers at the address, or not what is asked for.
    """

    def __init__(
        self, config: OpenAIEngineConfig, target_folder: Path, features: FeatureReader | None = None
    ):
        self.config = config
        self._features = features
        geometry = TargetGeometry.read(target_folder)
        stop_ids = geometry.stop_token_ids
        probe = GenerationRequest(request_id="probe", prompt_ids=(stop_ids or (0,))[:1], max_new_tokens=1)
        self._loop = BackgroundLoop(f"engine at {config.url}")
        with ExitStack() as undo:
            undo.callback(self._loop.close)
            client = self._loop.enter(open_client(config))
            self.server = self._loop.start(_meet(client, probe, stop_ids)).result()
            if features is not None:
                self.server = dataclasses.replace(self.server, dialect=CapturingVllmDialect())
            undo.pop_all()
        limits = RequestLimits(
            vocab_size=geometry.vocab_size,
            context_window_tokens=self.server.max_model_len or geometry.max_position_embeddings,
        )
        retokeniser = Retokeniser(ChatTemplate(load_tokenizer(target_folder)), stop_ids)
        self._answering = Answering(client, self.server, limits, stop_ids, retokeniser, probe, features)
        # Streams hold on to what answers, so connections live as long as anybody may ask.
        self._close = weakref.finalize(self._answering, self._loop.close)

    def open_stream(
        self, *, draft: DraftSetting | None = None, capture_layers: tuple[int, ...] | None = None
    ) -> RequestStream:
        """Start an empty stream.

        Raises:
            EngineError: A drafter is asked for, or features that the server does not capture.
        """
        if draft is not None:
            raise EngineError(
                f"The engine at {self.config.url} drafts by its own settings, if at all; only the native "
                "engine drafts with a drafter of this process. Set the engine's name to native."
            )
        captured = self._features.layers if self._features else None
        if capture_layers is not None and capture_layers != captured:
            raise EngineError(
                f"Features of layers {capture_layers} were asked of the engine at {self.config.url}, which "
                f"captures {captured or 'none'}. Set capture_features: false, or the engine's name to native "
                "or vllm, which is started to capture what a run needs."
            )
        return ServerStream(self._answering, self._loop)

    def close(self) -> None:
        """Close the connections and withdraw what is unfinished; happens too once nobody can ask any more."""
        self._close()


async def _meet(client: ServerClient, probe: GenerationRequest, stop_ids: tuple[int, ...]) -> Server:
    return await probe_server(client, await find_server(client), probe, stop_ids)
