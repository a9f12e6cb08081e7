"""Shapes and constants of a target, read from its `config.json` without torch.

Accepts the old spelling (`rope_theta`, `rope_scaling`) and the new one (`rope_parameters`).
`head_dim` is read, never computed when given: several families do not satisfy
head_dim = hidden_size / heads.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagleray.errors import ArtifactError

DECODER_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""`model_type` values whose decoder layers `targets/decoder.py` runs."""


@dataclass(frozen=True, kw_only=True)
class TargetGeometry:
    """What a drafter, a cache and preflight need to know of a target."""

    model_type: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    max_position_embeddings: int
    tie_word_embeddings: bool
    hidden_act: str
    attention_bias: bool
    bos_token_id: int | None
    pad_token_id: int | None
    stop_token_ids: tuple[int, ...]
    sliding_window: int | None = None
    """Positions that the most short-sighted layer attends to. None: every layer attends to all."""

    @classmethod
    def read(cls, folder: Path) -> "TargetGeometry":
        """Read `folder/config.json` (and the stop ids of `generation_config.json` if present).

        Raises:
            ArtifactError: No such file, or a family whose layers are not supported.
        """
        path = folder / "config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ArtifactError(
                f"Target folder {folder} has no config.json; expected a Hugging Face model folder. "
                "Set target.model to such a folder, to a hub name, or to `embedded`."
            ) from None
        except json.JSONDecodeError as error:
            raise ArtifactError(f"{path} is not JSON: {error}.") from None
        return cls.from_config(config, _stop_ids(folder, config))

    @classmethod
    def from_config(cls, config: dict[str, Any], stop_token_ids: tuple[int, ...]) -> "TargetGeometry":
        """Build from the plain data of a Hugging Face configuration.

        Raises:
            ArtifactError: The family is not one of `DECODER_FAMILIES`.
        """
        family = config.get("model_type", "")
        if family not in DECODER_FAMILIES:
            raise ArtifactError(
                f"Target model_type is {family!r}; the native decoder runs {', '.join(DECODER_FAMILIES)}. "
                "Choose a target of one of these families in target.model."
            )
        rope = config.get("rope_parameters") or {}
        scaling = dict(rope or config.get("rope_scaling") or {})
        scaling.pop("rope_theta", None)
        scaling_type = scaling.get("rope_type", scaling.get("type", "default"))
        num_heads = config["num_attention_heads"]
        return cls(
            model_type=family,
            num_layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_heads=num_heads,
            num_kv_heads=config.get("num_key_value_heads") or num_heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // num_heads,
            vocab_size=config["vocab_size"],
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            rope_theta=rope.get("rope_theta") or config.get("rope_theta") or 10000.0,
            rope_scaling=None if scaling_type == "default" else scaling,
            max_position_embeddings=config["max_position_embeddings"],
            tie_word_embeddings=config.get("tie_word_embeddings", False),
            hidden_act=config.get("hidden_act", "silu"),
            attention_bias=config.get("attention_bias", family == "qwen2"),
            bos_token_id=config.get("bos_token_id"),
            pad_token_id=config.get("pad_token_id"),
            stop_token_ids=stop_token_ids,
            sliding_window=_sliding_window(family, config),
        )


def _sliding_window(family: str, config: dict[str, Any]) -> int | None:
    if family == "mistral":
        window: int | None = config.get("sliding_window", 4096)
        return window
    slides = config.get("use_sliding_window", False) or "sliding_attention" in (
        config.get("layer_types") or ()
    )
    return config.get("sliding_window") if slides else None


def _stop_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    generation = folder / "generation_config.json"
    eos = json.loads(generation.read_text()).get("eos_token_id") if generation.exists() else None
    if eos is None:
        eos = config.get("eos_token_id")
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list) else (eos,)
