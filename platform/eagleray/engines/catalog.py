"""Every engine that EagleRay runs. Adding one is a folder beside this file and a branch of each function."""

import importlib.metadata
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, overload

from eagleray.engines.config import EngineConfig
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.openai.config import OpenAIEngineConfig
from eagleray.engines.replay.config import ReplayEngineConfig

if TYPE_CHECKING:
    from eagleray.engines.base import Engine
    from eagleray.engines.native.engine import NativeEngine


@overload
def build_engine(config: NativeEngineConfig, target_folder: Path, dtype: str) -> "NativeEngine": ...


@overload
def build_engine(config: EngineConfig, target_folder: Path, dtype: str) -> "Engine": ...


def build_engine(config: EngineConfig, target_folder: Path, dtype: str) -> "Engine":
    """Load the target into an engine of this process, connect to the server that runs it, or do without it.

    Args:
        dtype: Name of a torch dtype. A server has its own.
    """
    if isinstance(config, OpenAIEngineConfig):
        from eagleray.engines.openai.engine import OpenAIEngine

        return OpenAIEngine(config, target_folder)
    if isinstance(config, ReplayEngineConfig):
        from eagleray.engines.replay.engine import ReplayEngine

        return ReplayEngine(config, target_folder)
    import torch

    from eagleray.corpus.chat import ChatTemplate
    from eagleray.engines.native.engine import NativeEngine
    from eagleray.targets.decoder import TargetDecoder
    from eagleray.targets.loading import load_tokenizer

    decoder = TargetDecoder.load(target_folder, getattr(torch, dtype), batch_invariant=config.batch_invariant)
    # Read when a request has stop strings, and then once.
    chat = cache(lambda: ChatTemplate(load_tokenizer(target_folder)))
    return NativeEngine(decoder, config, show=lambda ids: chat().show(ids))


def engine_version(config: EngineConfig) -> str:
    """What answers, for the regime: the version of this package, or the server's kind and version."""
    if isinstance(config, OpenAIEngineConfig):
        from eagleray.engines.openai.server import server_name

        return server_name(config)
    return importlib.metadata.version("eagleray")
