"""The Medusa network (arXiv 2401.10774): the target's last hidden state in, one token a head out.

The state of position p predicts, through the target's own head, the token at p + 1, which is the anchor
of a draft; head k, counted from 0, predicts the token at p + 2 + k. Heads do not see each other's tokens.
Shapes: N rows, D target width, V target vocabulary, U draft vocabulary.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from eagleray.drafters.base import DraftSession, StepTerms, TrainingBatch
from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
from eagleray.drafters.blocks.headed import HeadedDrafter
from eagleray.drafters.medusa.config import MedusaConfig
from eagleray.drafters.medusa.export import (
    LM_HEAD,
    engine_config,
    map_to_offsets,
    offsets_to_map,
    profile,
    read_token_map,
)
from eagleray.drafters.medusa.session import MedusaSession
from eagleray.drafters.medusa.step import training_step
from eagleray.targets.heads import FrozenHeads


class MedusaHead(nn.Module):
    """Residual blocks; they start as the identity, so that a head starts as the target's own."""

    def __init__(self, width: int, num_blocks: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(num_blocks))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, hidden_ND: Tensor) -> Tensor:
        """Map [N, D] to [N, D]."""
        for layer in self.layers:
            hidden_ND = hidden_ND + F.silu(layer(hidden_ND))
        return hidden_ND


class MedusaDrafter(HeadedDrafter):
    """The drafter: heads, training step and export; it drafts through `MedusaSession`."""

    can_draw = True
    token_matrices = frozenset({"lm_head", "lm_heads"})

    def __init__(self, config: MedusaConfig, heads: FrozenHeads, vocabulary: DraftVocabulary | None):
        super().__init__(config, heads, vocabulary)
        self.config = config
        width = heads.geometry.hidden_size
        self.blocks = nn.ModuleList(MedusaHead(width, config.num_blocks) for _ in range(config.num_heads))
        if config.output == "shared":
            self.lm_head = self._copied_head()
        if config.output == "own":
            self.lm_heads = nn.ModuleList(self._copied_head() for _ in range(config.num_heads))

    def score(self, head: int, final_ND: Tensor) -> Tensor:
        """Scores [N, U] of a head, from the target's last hidden state."""
        hidden_ND = self.blocks[head](final_ND)
        if self.config.output == "target":
            return F.linear(hidden_ND, self.target_head_UD())
        output = self.lm_head if self.config.output == "shared" else self.lm_heads[head]
        scores_NU: Tensor = output(hidden_ND)
        return scores_NU

    def forward(self, batch: TrainingBatch) -> StepTerms:
        """Run every head at every position that predicts a supervised token."""
        return training_step(self, batch)

    def open_session(self, max_rows: int, max_length: int) -> DraftSession:
        """Keep the newest state of `max_rows` sequences."""
        return MedusaSession(self, max_rows)

    @classmethod
    def read_vocabulary(
        cls, tensors: Mapping[str, Tensor], heads: FrozenHeads, origin: Path
    ) -> DraftVocabulary:
        """The reduced vocabulary of an export: vLLM wants its target ids, not offsets to them.

        Raises:
            ArtifactError: It is missing, or not an ascending list of ids of the target.
        """
        return read_token_map(tensors, heads.geometry.vocab_size, origin)

    def borrowed_tensors(self) -> dict[str, Tensor]:
        """The target's output matrix where heads use it: vLLM does not share it with them."""
        return {LM_HEAD: self.target_head_UD()} if self.config.output == "target" else {}

    def export_config(self) -> dict[str, Any]:
        """Configuration that vLLM reads."""
        return engine_config(self)

    def export_profile(self) -> dict[str, Any]:
        """What a reader of the export must know and the configuration does not say."""
        return profile(self)

    def export_tensors(self) -> dict[str, Tensor]:
        """Tensors under the names that vLLM loads."""
        return offsets_to_map(super().export_tensors())

    def load_tensors(self, tensors: dict[str, Tensor], origin: Path) -> None:
        """Load an export, its draft vocabulary included.

        Raises:
            ArtifactError: A name is missing or unknown, or a shape differs.
        """
        super().load_tensors(map_to_offsets(tensors, self.heads.geometry.vocab_size, origin), origin)

    def _copied_head(self) -> nn.Linear:
        rows_UD = self.target_head_UD()
        head = nn.Linear(rows_UD.shape[1], rows_UD.shape[0], bias=False)
        head.weight.data.copy_(rows_UD)
        return head
