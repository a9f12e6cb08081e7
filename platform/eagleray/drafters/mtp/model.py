"""The MTP network (arXiv 2412.19437), fitted to a frozen target: one layer, applied once a draft slot.

Row p holds the target's last hidden state of position p and the embedding of the token at p + 1, each
normed, and mixes them into the input of one decoder layer; its normed output, scored by the target's
lm_head, predicts the token at p + 2. The next slot takes that normed output in place of the target's.
Shapes: N packed rows, L tapped layers (none), D target width, U draft vocabulary, E = D.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagleray.drafters.base import StepTerms, TrainingBatch
from eagleray.drafters.blocks.chain.drafter import ChainDrafter, ChainLayer
from eagleray.drafters.blocks.chain.unroll import training_step
from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
from eagleray.drafters.blocks.headed import initialise
from eagleray.drafters.blocks.layers import Dimensions, Projections, Rotary, SwiGLU
from eagleray.drafters.blocks.teacher import HardTeacher, SoftTeacher
from eagleray.drafters.mtp.config import MTPConfig
from eagleray.drafters.mtp.export import engine_config, profile
from eagleray.targets.heads import FrozenHeads


class MTPLayer(ChainLayer):
    """Mixing of state and token, and a decoder layer of the Qwen2 flavour, named as MiMo names them."""

    def __init__(self, dimensions: Dimensions):
        super().__init__()
        width, eps = dimensions.hidden_size, dimensions.rms_norm_eps
        self.token_layernorm = nn.RMSNorm(width, eps=eps)
        self.hidden_layernorm = nn.RMSNorm(width, eps=eps)
        self.input_proj = nn.Linear(2 * width, width, bias=False)
        self.input_layernorm = nn.RMSNorm(width, eps=eps)
        self.self_attn = Projections(dimensions, width, normalise=False, bias=True)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=eps)
        self.mlp = SwiGLU(dimensions)
        self.final_layernorm = nn.RMSNorm(width, eps=eps)

    def enter(self, embedding_ND: Tensor, hidden_ND: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream, and its norm; both [N, D]. The hidden state comes before the token."""
        joined = torch.cat((self.hidden_layernorm(hidden_ND), self.token_layernorm(embedding_ND)), -1)
        residual_ND = self.input_proj(joined)
        return residual_ND, self.input_layernorm(residual_ND)


class MTPDrafter(ChainDrafter):
    """The drafter: network, training step and export."""

    def __init__(self, config: MTPConfig, heads: FrozenHeads, vocabulary: DraftVocabulary | None):
        super().__init__(config, heads, vocabulary)
        self.config = config
        self.dimensions = Dimensions.resolve(config, heads.geometry)
        layer = MTPLayer(self.dimensions)
        self.model = nn.ModuleDict({"mtp_layers": nn.ModuleList([layer])})
        self.rotary = Rotary(heads.geometry, self.dimensions.head_dim)
        initialise(self, layer.input_proj, layer.final_layernorm)

    @property
    def layer(self) -> MTPLayer:
        """The layer."""
        return cast("MTPLayer", self.model.get_submodule("mtp_layers.0"))

    def start(self, features_NLD: Tensor, final_ND: Tensor) -> Tensor:
        """The target's last hidden state [N, D]."""
        return self.widen(final_ND)

    def enter(self, ids_N: Tensor, hidden_ND: Tensor, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs of the layer. Engines leave out the token of row 0, and so does this."""
        embedding_ND = self.embed(ids_N).masked_fill((positions_N == 0)[:, None], 0.0)
        return self.layer.enter(embedding_ND, hidden_ND)

    def predict(self, hidden_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Scores over the draft vocabulary [N, U], and the state that the next draft step takes [N, D]."""
        normed_ND = self.layer.final_layernorm(hidden_ND)
        return F.linear(normed_ND, self.target_head_UD()), normed_ND

    def forward(self, batch: TrainingBatch) -> StepTerms:
        """Unroll `ttt_steps` draft steps at every supervised position."""
        config = self.config
        teacher = (SoftTeacher if config.soft_targets else HardTeacher)(self, batch)
        return training_step(self, batch, teacher, steps=config.ttt_steps, decay=config.step_loss_decay)

    def export_config(self) -> dict[str, Any]:
        """Configuration that SGLang and vLLM read."""
        return engine_config(self)

    def export_profile(self) -> dict[str, Any]:
        """What a reader of the export must know and the configuration does not say."""
        return profile(self)
