"""DFlash 2: the masked block with convolutions in its layers and a selector over its slots.

There is no paper; the network is what SGLang and vLLM run (`DFlash2DraftModel`), and its training is
our reading of public discussions (`step.py`). Shapes: N blocks, K slots, D width.
"""

from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from eagleray.drafters.base import DraftSession, StepTerms, TrainingBatch
from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
from eagleray.drafters.blocks.layers import Dimensions
from eagleray.drafters.blocks.masked_block.drafter import MaskedBlockDrafter
from eagleray.drafters.blocks.masked_block.layer import Attend, MaskedBlockLayer
from eagleray.drafters.dflash2.config import DFlash2Config
from eagleray.drafters.dflash2.convolution import SurroundingConvolution
from eagleray.drafters.dflash2.selector import CandidateSelector
from eagleray.drafters.dflash2.session import DFlash2Session
from eagleray.drafters.dflash2.step import training_step
from eagleray.errors import ConfigError
from eagleray.targets.heads import FrozenHeads

NEW_PARTS = frozenset({"attention_conv", "mlp_conv", "candidate_selector"})
"""Modules that a `dflash` drafter does not have."""


class ConvolvingLayer(MaskedBlockLayer):
    """A layer with a convolution along the block around each sublayer; context rows pass none."""

    def __init__(self, dimensions: Dimensions, config: DFlash2Config):
        super().__init__(dimensions)
        shape = (dimensions.hidden_size, config.conv_kernel_size, config.conv_group_size)
        self.attention_conv = SurroundingConvolution(*shape)
        self.mlp_conv = SurroundingConvolution(*shape)

    def mix(self, source_NKD: Tensor, attend: Attend) -> Tensor:
        """The attention sublayer, between its convolutions."""
        mixed_NKD: Tensor = self.attention_conv(source_NKD, partial(super().mix, attend=attend))
        return mixed_NKD

    def transform(self, source_NKD: Tensor) -> Tensor:
        """The MLP sublayer, between its convolutions."""
        transformed_NKD: Tensor = self.mlp_conv(source_NKD, super().transform)
        return transformed_NKD


class DFlash2Drafter(MaskedBlockDrafter):
    """The drafter: network, training step and export; it drafts through `DFlash2Session`."""

    config: DFlash2Config
    token_matrices = MaskedBlockDrafter.token_matrices | {"predecessor_codebook", "successor_codebook"}

    def __init__(self, config: DFlash2Config, heads: FrozenHeads, vocabulary: DraftVocabulary | None):
        geometry = heads.geometry
        if geometry.hidden_size % config.conv_group_size:
            raise ConfigError(
                f"drafter.conv_group_size is {config.conv_group_size}; expected a divisor of "
                f"{geometry.hidden_size}, the target's width."
            )
        super().__init__(config, heads, vocabulary)
        # No engine maps the selector's candidates back from a reduced vocabulary.
        self.architecture = (
            "DFlash2DraftModel" if vocabulary is None else "DFlash2ReducedVocabularyDraftModel"
        )
        self.candidate_selector = CandidateSelector(
            geometry.hidden_size, geometry.vocab_size, config.selector_rank
        )
        for module in self.modules():
            if isinstance(module, SurroundingConvolution):
                module.reset()

    def new_layer(self) -> MaskedBlockLayer:
        """A layer with convolutions."""
        return ConvolvingLayer(self.dimensions, self.config)

    def forward(self, batch: TrainingBatch) -> StepTerms:
        """Fill blocks at random anchors and choose among the candidates of their slots."""
        return training_step(self, batch)

    def open_session(self, max_rows: int, max_length: int) -> DraftSession:
        """Allocate keys and values of `max_rows` sequences."""
        return DFlash2Session(self, max_rows, max_length)

    def warm_start(self, tensors: dict[str, Tensor], origin: Path) -> None:
        """Take the weights of a `dflash2` export, or of a `dflash` one and then draft exactly as it did.

        Raises:
            ArtifactError: A name is missing or unknown, or a shape differs.
        """
        own = self.export_tensors()
        new = {name for name in own if not NEW_PARTS.isdisjoint(name.split("."))}
        fresh = {} if new & tensors.keys() else {name: own[name] for name in new}
        self.load_tensors({**tensors, **fresh}, origin)

    def engine_needs(self) -> dict[str, str]:
        """What each engine has to be told, or why it cannot serve this drafter."""
        if not self.has_vocabulary:
            return super().engine_needs()
        why = "not served: it takes the selector's candidates for ids of the target's vocabulary"
        return {"vllm": why, "sglang": why}

    def export_config(self) -> dict[str, Any]:
        """Configuration that SGLang and vLLM read."""
        content = super().export_config()
        names = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
        content["dflash_config"] |= {name: getattr(self.config, name) for name in names}
        return content
