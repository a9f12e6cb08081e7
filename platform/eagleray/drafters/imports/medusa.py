"""Medusa as its authors write it: a list of heads, each a list of residual blocks and a matrix."""

from collections.abc import Mapping
from typing import Any

from eagleray.drafters.imports.naming import Naming, PublicCheckpoint, Translation, rename


def knows(config: Mapping[str, Any]) -> bool:
    """By its model type or by keys that only it has."""
    return config.get("model_type") == "medusa" or "medusa_num_heads" in config


def translate(source: PublicCheckpoint) -> Translation:
    """`{head}.{block}.linear` are residual blocks; the matrix of a head comes after its last block."""
    config = source.config
    heads = config.get("medusa_num_heads", config.get("num_heads"))
    blocks = config.get("medusa_num_layers", config.get("num_hidden_layers", 1))
    if heads is None:
        raise source.refuse("medusa_num_heads is missing")
    source.require("hidden_size", config.get("hidden_size"), source.heads.geometry.hidden_size)
    source.require("vocab_size", config.get("vocab_size"), source.heads.geometry.vocab_size)
    rules = (
        (r"medusa_heads?\.", ""),
        (r"(\d+)\.(\d+)\.linear\.", r"blocks.\1.layers.\2."),
        (rf"(\d+)\.{blocks}\.weight", r"lm_heads.\1.weight"),
    )
    return Translation(
        settings={"name": "medusa", "num_heads": heads, "num_blocks": blocks, "output": "own"},
        tensors=rename(rename(source.tensors, rules[:1]), rules[1:]),
    )


NAMING = Naming(name="Medusa", knows=knows, translate=translate)
