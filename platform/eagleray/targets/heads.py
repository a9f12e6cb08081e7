"""The frozen parts of a target that drafters share: token embedding and lm_head.

Loaded alone, without the layers, so that a training worker that reads stored features holds
about a fifth of the target. Shapes: V target vocabulary, D target width.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from eagleray.errors import ArtifactError
from eagleray.targets.geometry import TargetGeometry

EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"


@dataclass(frozen=True, kw_only=True)
class FrozenHeads:
    """Embedding and output matrix of a target; the same tensor when the target ties them."""

    geometry: TargetGeometry
    embed_VD: Tensor
    lm_head_VD: Tensor


def load_heads(folder: Path, dtype: torch.dtype) -> FrozenHeads:
    """Read both matrices from the safetensors of a Hugging Face folder.

    Raises:
        ArtifactError: The folder has no safetensors, or none of them holds the embedding.
    """
    geometry = TargetGeometry.read(folder)
    embedding = read_tensor(folder, EMBEDDING, dtype)
    head = embedding if geometry.tie_word_embeddings else read_tensor(folder, LM_HEAD, dtype)
    return FrozenHeads(geometry=geometry, embed_VD=embedding, lm_head_VD=head)


def read_tensor(folder: Path, name: str, dtype: torch.dtype) -> Tensor:
    """Read one named tensor from whichever safetensors file of `folder` holds it.

    Raises:
        ArtifactError: No file holds it.
    """
    files = sorted(folder.glob("*.safetensors"))
    for path in files:
        with safe_open(path, framework="pt") as stream:
            if name in stream.keys():  # noqa: SIM118 - safe_open is not iterable
                return stream.get_tensor(name).to(dtype)
    raise ArtifactError(
        f"Target folder {folder} has no tensor {name!r} in its {len(files)} safetensors files. "
        "Expected a Hugging Face causal language model saved with save_pretrained."
    )
