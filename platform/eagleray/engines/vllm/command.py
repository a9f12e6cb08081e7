"""How a vLLM server is started: the command, its environment, and what it is told of a drafter.

Everything that a version of vLLM may rename stands here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagleray.drafters.folder import read_profile
from eagleray.engines.vllm.config import VllmConfig
from eagleray.errors import ArtifactError, EngineError

MODEL_NAME = "target"
"""Under which the server knows the target."""
NOT_SERVED = "not served"
"""How a profile's entry for an engine begins that cannot run the drafter; the reason follows."""
METHODS = {"eagle3": "eagle3", "dflash": "dflash", "medusa": "medusa", "eagle": "eagle", "mtp": "mtp"}
"""Our algorithms, and the `method` that vLLM serves their exported folders with."""


@dataclass(frozen=True, kw_only=True)
class ServedDrafter:
    """An exported drafter, and how many tokens it drafts per cycle."""

    folder: Path
    depth: int


def server_command(config: VllmConfig, target: Path, drafter: ServedDrafter | None, port: int) -> list[str]:
    """Program and arguments.

    Raises:
        EngineError: The drafter's algorithm is not one that vLLM serves.
        ArtifactError: The drafter folder is not one that this program exported.
    """
    arguments: dict[str, Any] = {
        "served-model-name": MODEL_NAME,
        "host": "127.0.0.1",
        "port": port,
        "dtype": config.dtype,
        "max-model-len": config.max_length,
        "max-num-seqs": config.max_concurrency,
        "max-num-batched-tokens": max(config.max_length, 1024),
        # The target's generation_config.json would otherwise set what a request leaves open.
        "generation-config": "vllm",
    }
    switches = ["--enforce-eager", "--no-enable-prefix-caching", "--disable-uvicorn-access-log"]
    if drafter is not None:
        speculation = _speculation(drafter)
        arguments["speculative-config"] = json.dumps(speculation)
        if speculation["method"] == "mtp":
            # The layer numbers itself after the target's layers, by this key of the target.
            arguments["hf-overrides"] = json.dumps({"num_nextn_predict_layers": 1})
        # Refused by a server that does not speculate.
        arguments["per-request-spec-decode-metrics"] = "detailed"
    program = [str(config.environment.absolute() / "bin" / "vllm"), "serve", str(target)]
    return [*program, *(f"--{name}={value}" for name, value in arguments.items()), *switches]


def server_environment(config: VllmConfig) -> dict[str, str]:
    """Variables that a server needs besides those of this process."""
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": str(config.kv_cache_gib),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        # One virtual environment must not see the packages of another.
        "PYTHONPATH": "",
    }
    openmp = config.environment.absolute() / "lib" / "libiomp5.so"
    if openmp.exists():
        variables["LD_PRELOAD"] = str(openmp)
    if config.threads is not None:
        variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(config.threads)}
    return variables


def why_not_served(profile: Mapping[str, Any]) -> str | None:
    """Why vLLM cannot run the drafter of a profile; None if it can."""
    algorithm, told = profile["algorithm"], str(profile.get("engines", {}).get("vllm", ""))
    if algorithm not in METHODS:
        return f"its algorithm is {algorithm!r}, and vLLM is asked for {', '.join(METHODS)} only"
    return told if told.startswith(NOT_SERVED) else None


def _speculation(drafter: ServedDrafter) -> dict[str, Any]:
    profile = read_profile(drafter.folder)
    if (reason := why_not_served(profile)) is not None:
        raise EngineError(
            f"Drafter {drafter.folder} cannot be served by vLLM: {reason}. "
            "Serve it with the native engine, or train it with other settings."
        )
    if drafter.depth < 1:
        raise ArtifactError(f"Draft depth is {drafter.depth}; expected at least 1.")
    return {
        "method": METHODS[profile["algorithm"]],
        "model": str(drafter.folder.absolute()),
        "num_speculative_tokens": drafter.depth,
    }
