"""Every engine that EagleRay runs. Adding one is a folder beside this file and a branch of `build_engine`."""

import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING

from eagleray.engines.native.config import NativeEngineConfig

if TYPE_CHECKING:
    from eagleray.engines.native.engine import NativeEngine


def build_engine(config: NativeEngineConfig, target_folder: Path, dtype: str) -> "NativeEngine":
    """Load the target into an engine of this process.

    Args:
        dtype: Name of a torch dtype.
    """
    import torch

    from eagleray.engines.native.engine import NativeEngine
    from eagleray.targets.decoder import TargetDecoder

    decoder = TargetDecoder.load(target_folder, getattr(torch, dtype), batch_invariant=config.batch_invariant)
    return NativeEngine(decoder, config)


def engine_version(config: NativeEngineConfig) -> str:
    """Version of the engine's code, for the regime. The native engine is part of this package."""
    return importlib.metadata.version("eagleray")
