"""Settings of an SGLang server that we start ourselves."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from eagleray.settings import Settings


class SglangConfig(Settings):
    """A server process of SGLang, in a Python environment of its own."""

    name: Literal["sglang"] = "sglang"
    """Selects this engine."""

    environment: Path = Path(".venv-sglang")
    """The environment that holds SGLang: `pip install sglang` in a fresh one, on a machine with a GPU."""

    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Numbers of target and drafter."""

    max_length: int = Field(default=4096, gt=1)
    """Longest prompt and answer together, in tokens."""

    max_concurrency: int = Field(default=48, gt=0)
    """Sequences that are decoded together."""

    tensor_parallel: int = Field(default=1, gt=0)
    """GPUs that share the target."""

    gpu_memory_share: float | None = Field(default=None, gt=0, lt=1)
    """Of a GPU's memory, what weights and cache take; None leaves it to SGLang, which takes nearly all. A
    drafter that is swapped in needs room for a second server beside the first."""

    prefix_caching: bool = False
    """Keep what was computed of earlier prompts. Off where servers are measured."""

    start_timeout_s: float = Field(default=1200.0, gt=0)
    """Longest wait for a server to answer; capturing CUDA graphs takes minutes."""

    request_timeout_s: float = Field(default=600.0, gt=0)
    """Longest wait for an answer."""

    @property
    def concurrency(self) -> int:
        """Requests that are answered at once."""
        return self.max_concurrency
