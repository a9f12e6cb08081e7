"""The EAGLE-3 network: fused target features and a token in, a hidden state out.

Row p holds the features of position p and the embedding of the token at p + 1, and predicts the
token at p + 2. A draft continues by feeding the layer's own output in place of the features.
Shapes: N packed rows, L tapped layers, D target width, F = L * D,
U draft vocabulary, E = 2 D.
"""

from typing import Any

import torch
from torch import Tensor, nn

from eagleray.drafters.base import StepTerms, TrainingBatch
from eagleray.drafters.blocks.chain.drafter import ChainDrafter, ChainLayer
from eagleray.drafters.blocks.chain.unroll import training_step
from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
from eagleray.drafters.blocks.headed import initialise
from eagleray.drafters.blocks.layers import Dimensions, Projections, Rotary, SwiGLU
from eagleray.drafters.blocks.teacher import SoftTeacher
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.drafters.eagle3.export import engine_config, profile
from eagleray.targets.heads import FrozenHeads


class Eagle3Layer(ChainLayer):
    """The decoder layer; it attends over token and hidden state side by side."""

    def __init__(self, dimensions: Dimensions, *, norm_before_residual: bool):
        super().__init__()
        self.norm_before_residual = norm_before_residual
        width, eps = dimensions.hidden_size, dimensions.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(width, eps=eps)
        self.hidden_norm = nn.RMSNorm(width, eps=eps)
        self.self_attn = Projections(dimensions, 2 * width, normalise=False)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=eps)
        self.mlp = SwiGLU(dimensions)

    def enter(self, embedding_ND: Tensor, hidden_ND: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream [N, D], and what attention is made from: [N, 2 D], embedding first."""
        normed_ND = self.hidden_norm(hidden_ND)
        joined_NE = torch.cat((self.input_layernorm(embedding_ND), normed_ND), -1)
        return (normed_ND if self.norm_before_residual else hidden_ND), joined_NE


class Eagle3Drafter(ChainDrafter):
    """The drafter: network, training step and export."""

    def __init__(self, config: Eagle3Config, heads: FrozenHeads, vocabulary: DraftVocabulary):
        super().__init__(config, heads, vocabulary)
        geometry = heads.geometry
        self.config = config
        self.dimensions = Dimensions.resolve(config, geometry)
        width, eps = geometry.hidden_size, geometry.rms_norm_eps
        if config.feature_norm == "per_layer":
            self.fc_norm = nn.ModuleList(nn.RMSNorm(width, eps=eps) for _ in self.tapped_layers)
        elif config.feature_norm == "joint":
            self.input_norm = nn.RMSNorm(len(self.tapped_layers) * width, eps=eps)
        self.fc = nn.Linear(len(self.tapped_layers) * width, width, bias=False)
        self.midlayer = Eagle3Layer(self.dimensions, norm_before_residual=config.norm_before_residual)
        self.norm = nn.RMSNorm(width, eps=eps)
        self.lm_head = nn.Linear(width, len(vocabulary.ids_U), bias=False)
        self.rotary = Rotary(geometry, self.dimensions.head_dim)
        initialise(self, self.fc, self.norm)
        self.lm_head.weight.data.copy_(self.target_head_UD())
        self.lm_head.weight.requires_grad_(config.train_head)

    @property
    def layer(self) -> Eagle3Layer:
        """The layer."""
        return self.midlayer

    def start(self, features_NLD: Tensor, final_ND: Tensor) -> Tensor:
        """Mix the tapped layers, in the order of their ids, into one hidden state [N, D]."""
        features_NLD = self.widen(features_NLD)
        if self.config.feature_norm == "per_layer":
            by_layer = zip(self.fc_norm, features_NLD.unbind(-2), strict=True)
            features_NLD = torch.stack([norm(feature_ND) for norm, feature_ND in by_layer], -2)
        joined_NF = features_NLD.flatten(-2)
        if self.config.feature_norm == "joint":
            joined_NF = self.input_norm(joined_NF)
        fused_ND: Tensor = self.fc(joined_NF)
        return fused_ND

    def enter(self, ids_N: Tensor, hidden_ND: Tensor, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """Token and state, each normed, side by side for attention."""
        return self.midlayer.enter(self.embed(ids_N), hidden_ND)

    def predict(self, hidden_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Scores over the draft vocabulary [N, U], and the state that the next draft step takes [N, D]."""
        normed_ND = self.norm(hidden_ND)
        return self.lm_head(normed_ND), normed_ND if self.config.norm_output else hidden_ND

    def forward(self, batch: TrainingBatch) -> StepTerms:
        """Unroll `ttt_steps` draft steps at every supervised position."""
        teacher = SoftTeacher(self, batch)
        steps, decay = self.config.ttt_steps, self.config.step_loss_decay
        return training_step(self, batch, teacher, steps=steps, decay=decay)

    def export_config(self) -> dict[str, Any]:
        """Configuration that SGLang and vLLM read."""
        return engine_config(self)

    def export_profile(self) -> dict[str, Any]:
        """What a reader of the export must know and the configuration does not say."""
        return profile(self)
