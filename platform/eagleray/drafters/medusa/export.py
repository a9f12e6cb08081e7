"""How a Medusa folder describes itself to vLLM and to us. SGLang serves no Medusa.

Shapes: V target vocabulary, U draft vocabulary.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eagleray.drafters.blocks.draft_vocab import D2T, T2D, DraftVocabulary
from eagleray.errors import ArtifactError

if TYPE_CHECKING:
    from eagleray.drafters.medusa.model import MedusaDrafter

LM_HEAD = "lm_head.weight"
TOKEN_MAP = "token_map"


def engine_config(drafter: "MedusaDrafter") -> dict[str, Any]:
    """Content of `config.json`.

    vLLM folds every key that contains `num` and `heads` (or `layers`) into one, so no attention heads and
    no layers of the target may stand here.
    """
    geometry, config = drafter.heads.geometry, drafter.config
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": geometry.hidden_size,
        "vocab_size": geometry.vocab_size,
        "truncated_vocab_size": len(drafter.d2t) if drafter.has_vocabulary else geometry.vocab_size,
        "num_heads": config.num_heads,
        "num_hidden_layers": config.num_blocks,
        "medusa_fc_bias": True,
        "original_lm_head": config.output != "own",
        "torch_dtype": "float32",
    }


def profile(drafter: "MedusaDrafter") -> dict[str, Any]:
    """What a reader must know and `config.json` does not say."""
    heads = drafter.config.num_heads
    return {
        "algorithm": drafter.config.name,
        "settings": drafter.config.model_dump(mode="json"),
        "anchor_convention": "the last hidden state of position p drafts from p + 2; the anchor is at p + 1",
        "slots": heads,
        "trained_slots": heads,
        "target_layer_ids": [],
        "layer_id_convention": "no layer is tapped; heads read the last hidden state after the final norm",
        "draft_vocabulary": ("target id = token_map[draft id]" if drafter.has_vocabulary else "the target's"),
        "engines": {
            "vllm": "not served: version 0.32 reads token_map and then misses it among its parameters"
            if drafter.has_vocabulary
            else f"method medusa, num_speculative_tokens {heads}, exactly as many as heads",
            "sglang": "not served: it has no Medusa",
        },
    }


def read_token_map(tensors: Mapping[str, Tensor], target_size: int, origin: Path) -> DraftVocabulary:
    """Read the target ids of a reduced vocabulary.

    Raises:
        ArtifactError: The map is missing, is not ascending ids below `target_size`, or does not fit the
            output matrix.
    """
    if TOKEN_MAP not in tensors:
        raise ArtifactError(
            f"Drafter {origin} has no tensor {TOKEN_MAP!r}, so its draft ids have no meaning. "
            "Export the drafter again."
        )
    ids_U, rows = tensors[TOKEN_MAP].long(), len(tensors.get(LM_HEAD, tensors[TOKEN_MAP]))
    ascending = bool((ids_U.diff() > 0).all())
    if len(ids_U) != rows or not ascending or ids_U[0] < 0 or ids_U[-1] >= target_size:
        raise ArtifactError(
            f"Drafter {origin}: {TOKEN_MAP} holds {len(ids_U)} ids starting {ids_U[:4].tolist()} for the "
            f"{rows} rows of {LM_HEAD}; expected as many, strictly ascending and below {target_size}, the "
            "target vocabulary. Export the drafter again."
        )
    return DraftVocabulary(ids_U, target_size)


def offsets_to_map(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Say the vocabulary, if it is reduced, as vLLM reads it."""
    if D2T not in tensors:
        return tensors
    kept = {name: tensor for name, tensor in tensors.items() if name not in (D2T, T2D)}
    return kept | {TOKEN_MAP: tensors[D2T] + torch.arange(len(tensors[D2T]))}


def map_to_offsets(tensors: dict[str, Tensor], target_size: int, origin: Path) -> dict[str, Tensor]:
    """Undo `offsets_to_map`."""
    if TOKEN_MAP not in tensors:
        return tensors
    vocabulary = read_token_map(tensors, target_size, origin)
    kept = {name: tensor for name, tensor in tensors.items() if name != TOKEN_MAP}
    return kept | {D2T: vocabulary.d2t_U, T2D: vocabulary.t2d_V}
