"""Base of drafters that borrow the target's embedding and output matrix.

Parameters and persistent buffers carry the names that SGLang and vLLM load, so `state_dict` is the
export. Shapes: V target vocabulary, U draft vocabulary, D target width, N tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagleray.drafters.base import TrainableDrafter
from eagleray.drafters.blocks.config import HeadedConfig
from eagleray.drafters.blocks.draft_vocab import D2T, T2D, DraftVocabulary
from eagleray.errors import ArtifactError
from eagleray.targets.heads import FrozenHeads


class HeadedDrafter(TrainableDrafter):
    """Holds the frozen matrices unregistered, and the draft vocabulary as buffers.

    Args:
        vocabulary: None drafts over the whole target vocabulary.
    """

    d2t: Tensor
    t2d: Tensor

    def __init__(self, config: HeadedConfig, heads: FrozenHeads, vocabulary: DraftVocabulary | None):
        super().__init__()
        self.max_depth = config.max_depth
        self.tapped_layers = config.tapped_layers(heads.geometry.num_layers)
        self.heads = heads
        self.has_vocabulary = vocabulary is not None
        if vocabulary is not None:
            self.register_buffer(D2T, vocabulary.d2t_U.clone())
            self.register_buffer(T2D, vocabulary.t2d_V)

    @classmethod
    def fresh(cls, config: HeadedConfig, heads: FrozenHeads, counts_V: Tensor | None) -> Self:
        """Make one from its settings.

        Args:
            counts_V: How often each target id is supervised; needed when the draft vocabulary is reduced.

        Raises:
            ConfigError: The settings do not fit the target, or there are no counts to choose ids from.
        """
        size = config.draft_vocab_size
        return cls(config, heads, None if size is None else DraftVocabulary.choose(size, heads, counts_V))

    @classmethod
    def restored(
        cls, config: HeadedConfig, heads: FrozenHeads, tensors: Mapping[str, Tensor], origin: Path
    ) -> Self:
        """Make one in the shape of an export's tensors; `load_tensors` comes next.

        Raises:
            ArtifactError: Its draft vocabulary is reduced, but the tensors do not say to what.
        """
        reduced = config.draft_vocab_size is not None
        return cls(config, heads, cls.read_vocabulary(tensors, heads, origin) if reduced else None)

    @classmethod
    def read_vocabulary(
        cls, tensors: Mapping[str, Tensor], heads: FrozenHeads, origin: Path
    ) -> DraftVocabulary:
        """The reduced vocabulary of an export, in the form that engines read for this drafter.

        Raises:
            ArtifactError: It is missing or contradicts itself.
        """
        return DraftVocabulary.from_tensors(tensors, heads.geometry.vocab_size, origin)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        embed_VD = fn(self.heads.embed_VD)
        tied = self.heads.lm_head_VD is self.heads.embed_VD
        self.heads = replace(
            self.heads, embed_VD=embed_VD, lm_head_VD=embed_VD if tied else fn(self.heads.lm_head_VD)
        )
        return super()._apply(fn, recurse)

    def widen(self, tensor: Tensor) -> Tensor:
        """A tensor of the target in the dtype of the drafter's weights; the target's may be narrower."""
        return tensor.to(next(self.parameters()).dtype)

    def embed(self, ids: Tensor) -> Tensor:
        """Target embedding of ids of any shape."""
        return self.widen(F.embedding(ids, self.heads.embed_VD))

    def kept_ids_U(self) -> Tensor | None:
        """Target id of each draft id; None when they are the same."""
        if not self.has_vocabulary:
            return None
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def target_head_UD(self) -> Tensor:
        """Rows of the target's frozen lm_head that stand for the draft vocabulary."""
        kept_U, head_VD = self.kept_ids_U(), self.heads.lm_head_VD
        return self.widen(head_VD if kept_U is None else head_VD.index_select(0, kept_U))

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft ids of any shape."""
        return draft_ids + self.d2t[draft_ids] if self.has_vocabulary else draft_ids

    def to_draft_ids(self, target_ids: Tensor) -> Tensor:
        """Draft ids of target ids of any shape; arbitrary but valid where the drafter cannot propose one."""
        return (self.t2d.cumsum(0) - 1).clamp(min=0)[target_ids] if self.has_vocabulary else target_ids

    def is_draftable(self, target_ids: Tensor) -> Tensor:
        """bool; whether the draft vocabulary holds each target id."""
        return self.t2d[target_ids] if self.has_vocabulary else torch.ones_like(target_ids, dtype=torch.bool)

    def borrowed_tensors(self) -> dict[str, Tensor]:
        """Tensors of the target that an export carries because engines want them; never loaded."""
        return {}

    def export_tensors(self) -> dict[str, Tensor]:
        """Contiguous tensors on the CPU: the drafter's own, and those it borrows."""
        exported = self.state_dict() | self.borrowed_tensors()
        return {name: tensor.detach().cpu().contiguous() for name, tensor in exported.items()}

    def load_tensors(self, tensors: dict[str, Tensor], origin: Path) -> None:
        """Load an export, its draft vocabulary included.

        Raises:
            ArtifactError: A name is missing or unknown, a shape differs, or d2t and t2d disagree.
        """
        own = self.state_dict()
        expected = own | self.borrowed_tensors()
        missing = sorted(expected.keys() - tensors.keys())
        unknown = sorted(tensors.keys() - expected.keys())
        if missing or unknown:
            raise ArtifactError(
                f"Drafter {origin} does not hold the expected tensors. Missing: {missing or 'none'}. "
                f"Unknown: {unknown or 'none'}. Check that its settings match the weights, or export "
                "it again."
            )
        for name, tensor in tensors.items():
            if tensor.shape != expected[name].shape:
                raise ArtifactError(
                    f"Drafter {origin}: tensor {name} has shape {tuple(tensor.shape)}; expected "
                    f"{tuple(expected[name].shape)}. Check that its settings match the weights."
                )
        if self.has_vocabulary:
            DraftVocabulary.from_tensors(tensors, len(self.t2d), origin)
        self.load_state_dict({name: tensors[name] for name in own})


def draw_matrices(module: nn.Module) -> None:
    """Draw matrices from N(0, 0.02), the scale that targets of these families start from."""
    for parameter in module.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)


def initialise(module: nn.Module, fuse: nn.Linear, last_norm: nn.RMSNorm) -> None:
    """Draw matrices, two things otherwise than the rest.

    Features have entries of ten and more, so the matrix that fuses them starts small: otherwise its output
    drowns what the first layer adds to it, and learning is slow. The last norm starts at a half, so that
    the first logits over the target's lm_head are not confidently wrong.
    """
    draw_matrices(module)
    nn.init.normal_(fuse.weight, std=0.002)
    nn.init.constant_(last_norm.weight, 0.5)


def rotary_config(heads: FrozenHeads) -> dict[str, Any]:
    """Rotary and vocabulary keys of `config.json`, in the old spelling and in the new one.

    transformers 5 writes `rope_parameters`; older readers need the two keys at top level.
    """
    geometry = heads.geometry
    return {
        "rope_theta": geometry.rope_theta,
        "rope_scaling": geometry.rope_scaling,
        "rope_parameters": {
            "rope_theta": geometry.rope_theta,
            **(geometry.rope_scaling or {"rope_type": "default"}),
        },
        "max_position_embeddings": geometry.max_position_embeddings,
        "vocab_size": geometry.vocab_size,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "attention_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": geometry.bos_token_id,
        "eos_token_id": list(geometry.stop_token_ids),
        "pad_token_id": geometry.pad_token_id,
    }
