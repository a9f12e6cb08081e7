"""Settings of an SGLang server that we start ourselves."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from eagleray.settings import Settings


class SglangConfig(Settings):
    """A server process of SGLang, in a Python environment of its own."""

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

    start_timeout_s: float = Field(default=1200.0, gt=0)
    """Longest wait for a server to answer; capturing CUDA graphs takes minutes."""

    request_timeout_s: float = Field(default=600.0, gt=0)
    """Longest wait for an answer."""
