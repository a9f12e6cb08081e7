"""Every engine that EagleRay runs. Adding one is a folder beside this file and a branch of each function."""

import importlib.metadata
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from eagleray.engines.config import DistilEngineConfig, EngineConfig, ServedEngineConfig
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.openai.config import OpenAIEngineConfig
from eagleray.engines.replay.config import ReplayEngineConfig
from eagleray.engines.vllm.config import VllmConfig
from eagleray.errors import EngineError

if TYPE_CHECKING:
    from eagleray.engines.base import Engine
    from eagleray.engines.native.engine import NativeEngine
    from eagleray.engines.served import Drafting
    from eagleray.engines.sglang.process import SglangServer
    from eagleray.engines.vllm.process import VllmServer


@overload
def build_engine(config: NativeEngineConfig, target_folder: Path, dtype: str) -> "NativeEngine": ...


@overload
def build_engine(config: EngineConfig, target_folder: Path, dtype: str) -> "Engine": ...


def build_engine(config: EngineConfig, target_folder: Path, dtype: str) -> "Engine":
    """Load the target into an engine of this process, connect to the server that runs it, or do without it.

    The native engine takes the GPU of this process where it has one.

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

    decoder = TargetDecoder.load(
        target_folder, getattr(torch, dtype), native_device(), batch_invariant=config.batch_invariant
    )
    # Read when a request has stop strings, and then once.
    chat = cache(lambda: ChatTemplate(load_tokenizer(target_folder)))
    return NativeEngine(decoder, config, show=lambda ids: chat().show(ids))


def build_distilling_engine(
    config: DistilEngineConfig, target_folder: Path, dtype: str, capture_layers: tuple[int, ...] | None
) -> "Engine":
    """Build what answers for distilling; see `build_engine`.

    Args:
        capture_layers: Layers (outputs, 0-based) that streams will be asked to capture. A server must know
            them when it starts.

    Raises:
        EngineError: The engine cannot start.
    """
    if isinstance(config, VllmConfig):
        from eagleray.engines.vllm.engine import VllmEngine

        return VllmEngine(config, target_folder, capture_layers)
    return build_engine(config, target_folder, dtype)


def native_device() -> str:
    """Where the native engine of this process runs: `cuda` or `cpu`."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def settings_in_use(config: DistilEngineConfig | ServedEngineConfig) -> dict[str, Any]:
    """What an engine of this process is configured with, for the regime; what does nothing here is off."""
    settings = config.model_dump(mode="json", exclude={"name"})
    if isinstance(config, NativeEngineConfig):
        settings["cuda_graphs"] = config.cuda_graphs and native_device() == "cuda"
    return settings


def engine_version(config: DistilEngineConfig | ServedEngineConfig) -> str:
    """What answers, for the regime: the version of this package, or the server's kind and version.

    Raises:
        EngineError: The environment does not hold the engine, or nobody answers at its address.
    """
    if isinstance(config, ServedEngineConfig):
        from eagleray.engines.installed import Installed

        return f"{config.name} {Installed.find(config.environment, config.name).version}"
    if isinstance(config, OpenAIEngineConfig):
        from eagleray.engines.openai.server import server_name

        return server_name(config)
    return importlib.metadata.version("eagleray")


def served_algorithms(config: ServedEngineConfig) -> Collection[str]:
    """Algorithms of ours that the engine in an environment serves.

    Raises:
        EngineError: The environment does not hold it.
    """
    if isinstance(config, VllmConfig):
        from eagleray.engines.vllm.command import METHODS

        return METHODS
    from eagleray.engines.installed import Installed
    from eagleray.engines.sglang.versions import release_of

    return release_of(Installed.find(config.environment, "sglang").version).algorithms


def start_server(
    config: ServedEngineConfig, target: Path, drafter: "Drafting | None", log: Path
) -> "VllmServer | SglangServer":
    """Start an engine as a server.

    Args:
        target: Hugging Face folder of the target.
        drafter: None decodes plainly.
        log: File that takes everything the server prints.

    Raises:
        EngineError: The environment holds no such engine, it cannot draft like that, or the server does not
            come up.
    """
    if isinstance(config, VllmConfig):
        from eagleray.engines.vllm.process import VllmServer

        return VllmServer(config, target, drafter, log)
    from eagleray.engines.served import PromptLookup
    from eagleray.engines.sglang.process import SglangServer

    if isinstance(drafter, PromptLookup):
        raise EngineError(
            "SGLang is served without prompt lookup. Name an exported drafter, or use vLLM or the native "
            "engine."
        )
    return SglangServer(config, target, drafter, log)
