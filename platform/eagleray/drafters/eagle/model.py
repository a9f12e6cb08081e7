"""The EAGLE network: a feature and the token after it in, the next feature out.

Row p holds the target's last hidden state of position p and the embedding of the token at p + 1, mixed
into the input of one decoder layer without a first norm; its output is a guess of the target's last hidden
state of p + 1, which the target's lm_head turns into the token at p + 2. A draft goes on from the guess.
Shapes: N packed rows, L tapped layers (none), D target width, U draft vocabulary, E = D.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagleray.drafters.base import StepTerms, TrainingBatch
from eagleray.drafters.blocks.chain.drafter import ChainDrafter, ChainLayer
from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
from eagleray.drafters.blocks.headed import draw_matrices
from eagleray.drafters.blocks.layers import Dimensions, Projections, Rotary, SwiGLU
from eagleray.drafters.eagle.config import EagleConfig
from eagleray.drafters.eagle.export import engine_config, profile
from eagleray.drafters.eagle.step import training_step
from eagleray.targets.heads import FrozenHeads


class EagleLayer(ChainLayer):
    """A decoder layer that reads its input as it is."""

    def __init__(self, dimensions: Dimensions):
        super().__init__()
        width = dimensions.hidden_size
        self.self_attn = Projections(dimensions, width, normalise=False)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=dimensions.rms_norm_eps)
        self.mlp = SwiGLU(dimensions)


class EagleDrafter(ChainDrafter):
    """The drafter: network, training step and export."""

    def __init__(self, config: EagleConfig, heads: FrozenHeads, vocabulary: DraftVocabulary | None):
        super().__init__(config, heads, vocabulary)
        self.config = config
        self.dimensions = Dimensions.resolve(config, heads.geometry)
        width = heads.geometry.hidden_size
        self.fc = nn.Linear(2 * width, width, bias=config.fc_bias)
        self.layers = nn.ModuleList([EagleLayer(self.dimensions)])
        self.rotary = Rotary(heads.geometry, self.dimensions.head_dim)
        draw_matrices(self)

    @property
    def layer(self) -> EagleLayer:
        """The layer."""
        return cast("EagleLayer", self.layers[0])

    def start(self, features_NLD: Tensor, final_ND: Tensor) -> Tensor:
        """The target's last hidden state [N, D]."""
        return self.widen(final_ND)

    def enter(self, ids_N: Tensor, hidden_ND: Tensor, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """Token and feature, mixed in this order: residual stream and source of attention alike."""
        mixed_ND = self.fc(torch.cat((self.embed(ids_N), hidden_ND), -1))
        return mixed_ND, mixed_ND

    def predict(self, hidden_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Scores over the draft vocabulary [N, U], and the guessed feature that the next step takes."""
        return F.linear(hidden_ND, self.target_head_UD()), hidden_ND

    def forward(self, batch: TrainingBatch) -> StepTerms:
        """Guess the feature before every supervised token."""
        return training_step(self, batch)

    def export_config(self) -> dict[str, Any]:
        """Configuration that SGLang or vLLM reads."""
        return engine_config(self)

    def export_profile(self) -> dict[str, Any]:
        """What a reader of the export must know and the configuration does not say."""
        return profile(self)
