"""How a vLLM server is started: the command, its environment, and what it is told of a drafter.

Everything that a version of vLLM may rename stands here.
"""

import json
from pathlib import Path
from typing import Any

from eagleray.engines.served import MODEL_NAME, Drafting, PromptLookup, require_served
from eagleray.engines.vllm.capture import CONNECTOR_FOLDER, HiddenStates
from eagleray.engines.vllm.config import VllmConfig

METHODS = {"eagle3": "eagle3", "dflash": "dflash", "medusa": "medusa", "eagle": "eagle", "mtp": "mtp"}
"""Our algorithms, and the `method` that vLLM serves their exported folders with."""


def server_command(
    config: VllmConfig, target: Path, drafter: Drafting | HiddenStates | None, port: int
) -> list[str]:
    """Program and arguments.

    Args:
        drafter: What it drafts with, or what it writes of hidden states: vLLM does one or the other.

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
    switches = ["--disable-uvicorn-access-log"]
    switches += ["--enforce-eager"] if config.eager else []
    switches += [f"--{'' if config.prefix_caching else 'no-'}enable-prefix-caching"]
    if config.gpu_memory_share is not None:
        arguments["gpu-memory-utilization"] = config.gpu_memory_share
    if isinstance(drafter, HiddenStates):
        arguments |= drafter.arguments()
    elif drafter is not None:
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
        # A key of the surroundings would make it refuse us.
        "VLLM_API_KEY": "",
        # One virtual environment must not see the packages of another.
        "PYTHONPATH": str(CONNECTOR_FOLDER),
    }
    openmp = config.environment.absolute() / "lib" / "libiomp5.so"
    if openmp.exists():
        variables["LD_PRELOAD"] = str(openmp)
    if config.threads is not None:
        variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(config.threads)}
    return variables


def _speculation(drafter: Drafting) -> dict[str, Any]:
    if isinstance(drafter, PromptLookup):
        return {
            "method": "ngram",
            "num_speculative_tokens": drafter.depth,
            "prompt_lookup_min": drafter.min_ngram,
            "prompt_lookup_max": drafter.max_ngram,
        }
    return {
        "method": METHODS[require_served(drafter, "vllm", METHODS)],
        "model": str(drafter.folder.absolute()),
        "num_speculative_tokens": drafter.depth,
    }
