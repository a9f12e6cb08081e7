"""Settings of a vLLM server that we start ourselves."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from eagleray.settings import Settings


class VllmConfig(Settings):
    """A server process of vLLM, in a Python environment of its own."""

    name: Literal["vllm"] = "vllm"
    """Selects this engine."""

    environment: Path = Path(".venv-vllm")
    """The environment that holds vLLM; `make engine-vllm` makes the one for CPUs."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Numbers of target and drafter. CPUs without bfloat16 instructions are far faster in float32."""

    max_length: int = Field(default=1024, gt=1)
    """Longest prompt and answer together, in tokens."""

    max_concurrency: int = Field(default=16, gt=0)
    """Sequences that are decoded together."""

    eager: bool = True
    """Run the target as it is written. False lets vLLM compile it and capture CUDA graphs: minutes at the
    start, and far faster on a GPU."""

    prefix_caching: bool = False
    """Keep what was computed of earlier prompts. Off where servers are measured."""

    gpu_memory_share: float | None = Field(default=None, gt=0, le=1)
    """Of a GPU's memory, what the server takes; None leaves it to vLLM, which takes nearly all. A drafter
    that is swapped in needs room for a second server beside the first."""

    kv_cache_gib: int = Field(default=1, gt=0)
    """Memory for keys and values on a CPU."""

    threads: int | None = Field(default=None, gt=0)
    """CPU threads, not bound to cores. None: vLLM takes and binds all cores."""

    start_timeout_s: float = Field(default=600.0, gt=0)
    """Longest wait for a server to answer."""

    request_timeout_s: float = Field(default=600.0, gt=0)
    """Longest wait for an answer."""

    @property
    def concurrency(self) -> int:
        """Requests that are answered at once."""
        return self.max_concurrency
