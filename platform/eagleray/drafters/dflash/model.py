"""DFlash (arXiv 2602.06036) and its ablations.

The network is the shared masked block. Without injection its layers treat committed positions as
rows of their own; without the parallel block its slots hold tokens instead of masks. Parameters are
the same in all four. Shapes: N rows of any number of dimensions, D width.
"""

from typing import Any

from torch import Tensor

from eagleray.drafters.base import DraftSession, StepTerms, TrainingBatch
from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
from eagleray.drafters.blocks.masked_block.drafter import MaskedBlockDrafter
from eagleray.drafters.blocks.masked_block.layer import Attend, MaskedBlockLayer
from eagleray.drafters.blocks.masked_block.marginals import MarginalSession
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.dflash.session import AutoregressiveSession, DenoisingSession
from eagleray.drafters.dflash.step import training_step
from eagleray.targets.heads import FrozenHeads


class CarryingLayer(MaskedBlockLayer):
    """A layer for which committed positions are ordinary causal rows, fed with features at the bottom."""

    injects = False

    def context_source(self, context_ND: Tensor) -> Tensor:
        """Keys and values come from the normed state, as those of slots do."""
        source_ND: Tensor = self.input_layernorm(context_ND)
        return source_ND

    def carry(self, context_ND: Tensor, attend: Attend) -> Tensor:
        """The layer itself makes the state that the next one sees."""
        carried_ND: Tensor = self(context_ND, attend)
        return carried_ND


class DFlashDrafter(MaskedBlockDrafter):
    """The drafter: training step, session and export of the setting it is in."""

    config: DFlashConfig

    def __init__(self, config: DFlashConfig, heads: FrozenHeads, vocabulary: DraftVocabulary | None):
        self.layer_type = MaskedBlockLayer if config.kv_injection else CarryingLayer
        super().__init__(config, heads, vocabulary)
        self.can_draw = config.parallel_block and config.denoise_steps == 1
        # An engine would run an ablation as the whole method without an error, so it gets another name.
        lacks = (
            "" if config.kv_injection else "InputFusion",
            "" if config.parallel_block else "Autoregressive",
        )
        self.architecture = f"DFlash{''.join(lacks)}DraftModel"

    def new_layer(self) -> MaskedBlockLayer:
        """Injecting or carrying."""
        return self.layer_type(self.dimensions)

    def forward(self, batch: TrainingBatch) -> StepTerms:
        """Fill blocks at random anchors."""
        return training_step(self, batch)

    def open_session(self, max_rows: int, max_length: int) -> DraftSession:
        """Allocate keys and values of `max_rows` sequences."""
        if not self.config.parallel_block:
            return AutoregressiveSession(self, max_rows, max_length)
        session = MarginalSession if self.config.denoise_steps == 1 else DenoisingSession
        return session(self, max_rows, max_length)

    def engine_needs(self) -> dict[str, str]:
        """What each engine has to be told, or why it cannot serve this drafter."""
        if self.config.kv_injection and self.config.parallel_block:
            return super().engine_needs()
        why = "not served: it runs the whole method alone, not its ablations"
        return {"vllm": why, "sglang": why}

    def export_config(self) -> dict[str, Any]:
        """Configuration that SGLang and vLLM read, with the settings that make it an ablation."""
        content = super().export_config()
        plain = DFlashConfig()
        for key in ("kv_injection", "parallel_block", "denoise_steps"):
            if getattr(self.config, key) != getattr(plain, key):
                content["dflash_config"][key] = getattr(self.config, key)
        return content
