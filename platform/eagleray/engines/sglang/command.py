"""How an SGLang server is started, and what it is told of a drafter."""

from pathlib import Path
from typing import Any

from eagleray.engines.served import MODEL_NAME, ServedDrafter, require_served
from eagleray.engines.sglang.config import SglangConfig
from eagleray.engines.sglang.versions import BLOCKS, release_of


def server_command(
    config: SglangConfig, version: str, target: Path, drafter: ServedDrafter | None, port: int
) -> list[str]:
    """Program and arguments.

    Args:
        version: Of the SGLang in the environment.

    Raises:
        EngineError: This version does not serve the drafter's algorithm, or is too old.
        ArtifactError: The drafter folder is not one that this program exported.
    """
    arguments: dict[str, Any] = {
        "model-path": target,
        "served-model-name": MODEL_NAME,
        "host": "127.0.0.1",
        "port": port,
        "dtype": config.dtype,
        "context-length": config.max_length,
        "max-running-requests": config.max_concurrency,
        "tp-size": config.tensor_parallel,
        # The target's generation_config.json would otherwise set what a request leaves open.
        "sampling-defaults": "openai",
        **(_speculation(drafter, version) if drafter else {}),
    }
    if config.gpu_memory_share is not None:
        arguments["mem-fraction-static"] = config.gpu_memory_share
    # The warm-up generates; what is measured starts with our own first request.
    switches = ["--skip-server-warmup", "--enable-metrics"]
    switches += [] if config.prefix_caching else ["--disable-radix-cache"]
    program = [str(config.environment.absolute() / "bin" / "python"), "-m", "sglang.launch_server"]
    return [*program, *(f"--{name}={value}" for name, value in arguments.items()), *switches]


def server_environment() -> dict[str, str]:
    """Variables that a server needs besides those of this process."""
    # One virtual environment must not see the packages of another.
    return {"HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}


def _speculation(drafter: ServedDrafter, version: str) -> dict[str, Any]:
    algorithms = release_of(version).algorithms
    algorithm = require_served(drafter, "sglang", algorithms)
    common = {
        "speculative-algorithm": algorithms[algorithm],
        "speculative-draft-model-path": drafter.folder.absolute(),
        "speculative-num-draft-tokens": drafter.depth + 1,
    }
    if algorithm in BLOCKS:
        return common
    # A chain; left open, SGLang chooses all three for the architecture.
    return {**common, "speculative-num-steps": drafter.depth, "speculative-eagle-topk": 1}
