"""The DFlash network: a masked block in, hidden states of its slots out, in one forward.

A block is the newest committed token (the anchor) and masks; slot k predicts the token k positions
after the anchor, at its own position. Target features of the positions before the anchor enter each
layer as additional keys and values. Shapes: N packed rows, L tapped layers, D target width,
H query heads, G key/value heads, d width of a head.
"""

from typing import Any, cast

from torch import Tensor, nn

from eagleray.drafters.base import DraftSession, StepTerms, TrainingBatch
from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
from eagleray.drafters.blocks.headed import HeadedDrafter, initialise
from eagleray.drafters.blocks.layers import Dimensions, Projections, Rotary, SwiGLU
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.dflash.export import LM_HEAD, engine_config, profile
from eagleray.drafters.dflash.session import DFlashSession
from eagleray.drafters.dflash.step import training_step
from eagleray.errors import ConfigError
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.heads import FrozenHeads


class DFlashLayer(nn.Module):
    """A decoder layer over block rows; context rows pass through its key and value matrices alone."""

    def __init__(self, dimensions: Dimensions):
        super().__init__()
        width, eps = dimensions.hidden_size, dimensions.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(width, eps=eps)
        self.self_attn = Projections(dimensions, width, normalise=True)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=eps)
        self.mlp = SwiGLU(dimensions)

    def finish(self, hidden_ND: Tensor, attended_NE: Tensor) -> Tensor:
        """Residual updates after attention."""
        hidden_ND = hidden_ND + self.self_attn.o_proj(attended_NE)
        return hidden_ND + self.mlp(self.post_attention_layernorm(hidden_ND))


class DFlashDrafter(HeadedDrafter):
    """The drafter: network, training step and export; it drafts through `DFlashSession`."""

    def __init__(self, config: DFlashConfig, heads: FrozenHeads, vocabulary: DraftVocabulary | None):
        super().__init__(config, heads, vocabulary)
        geometry = heads.geometry
        self.config = config
        self.dimensions = Dimensions.resolve(config, geometry)
        self.mask_token_id = _mask_token(config, geometry)
        width, eps = geometry.hidden_size, geometry.rms_norm_eps
        self.fc = nn.Linear(len(self.tapped_layers) * width, width, bias=False)
        self.hidden_norm = nn.RMSNorm(width, eps=eps)
        self.layers = nn.ModuleList(DFlashLayer(self.dimensions) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(width, eps=eps)
        self.rotary = Rotary(geometry, self.dimensions.head_dim)
        initialise(self, self.fc, self.norm)

    def stack(self) -> list[DFlashLayer]:
        """The layers, bottom first."""
        return [cast("DFlashLayer", layer) for layer in self.layers]

    def fuse(self, features_NLD: Tensor) -> Tensor:
        """Mix the tapped layers, in the order of their ids, into the state that layers inject [N, D]."""
        fused_ND: Tensor = self.hidden_norm(self.fc(self.widen(features_NLD.flatten(-2))))
        return fused_ND

    def block_ids(self, anchor_ids: Tensor, size: int) -> Tensor:
        """[..., size]: the anchor and `size - 1` masks."""
        ids = anchor_ids.new_full((*anchor_ids.shape, size), self.mask_token_id)
        ids[..., 0] = anchor_ids
        return ids

    def forward(self, batch: TrainingBatch) -> StepTerms:
        """Fill blocks at random anchors."""
        return training_step(self, batch)

    def open_session(self, max_rows: int, max_length: int) -> DraftSession:
        """Allocate injected keys and values of `max_rows` sequences."""
        return DFlashSession(self, max_rows, max_length)

    def export_config(self) -> dict[str, Any]:
        """Configuration that SGLang and vLLM read."""
        return engine_config(self)

    def borrowed_tensors(self) -> dict[str, Tensor]:
        """With a reduced vocabulary, the target's rows for it."""
        return {LM_HEAD: self.target_head_UD()} if self.has_vocabulary else {}

    def export_profile(self) -> dict[str, Any]:
        """What a reader of the export must know and the configuration does not say."""
        return profile(self)


def _mask_token(config: DFlashConfig, geometry: TargetGeometry) -> int:
    if config.mask_token_id is None:
        taken = {geometry.bos_token_id, geometry.pad_token_id, *geometry.stop_token_ids}
        return next(token for token in range(geometry.vocab_size) if token not in taken)
    if config.mask_token_id >= geometry.vocab_size:
        raise ConfigError(
            f"drafter.mask_token_id is {config.mask_token_id}; expected an id below {geometry.vocab_size}, "
            "the target vocabulary, whose embedding the mask borrows."
        )
    return config.mask_token_id
