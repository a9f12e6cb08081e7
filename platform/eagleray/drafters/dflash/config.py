"""Settings of the DFlash drafter and its ablations."""

from typing import Literal

from pydantic import Field, model_validator

from eagleray.drafters.blocks.masked_block.config import MaskedBlockConfig, Reach


class DFlashConfig(MaskedBlockConfig):
    """Layers that fill a masked block in one forward, the target's features injected as keys and values.

    `kv_injection` and `parallel_block` are the two halves of the method (arXiv 2602.06036, table 9); a
    drafter that lacks one is for comparison, and only the native engine drafts with it.
    """

    name: Literal["dflash"] = "dflash"
    """Which drafter this section configures."""

    draft_vocab_size: int | None = Field(default=None, gt=0)
    """Target ids the drafter can propose: those that occur most as supervised tokens. None: all, with the
    target's whole lm_head.

    A number makes training and drafting cheaper. vLLM then reads the map and the reduced head from the
    export; SGLang does not know reduced vocabularies for DFlash, so leave it None to serve there.
    """

    kv_injection: bool = True
    """Every layer sees the target's features as keys and values. False is "diffusion only": the features
    are the input states of the committed positions, and the layers have to carry them on."""

    parallel_block: bool = True
    """One forward predicts all slots. False is "injection only": tokens are drafted one by one, each from
    the one before it."""

    denoise_steps: int = Field(default=1, gt=0)
    """Forwards over one block when drafting: after each, the surest slots keep their tokens and the others
    are masked again. Training then rehearses every step. Engines draft with the first step alone."""

    @model_validator(mode="after")
    def _steps_fit(self) -> "DFlashConfig":
        if self.denoise_steps > 1 and not self.parallel_block:
            raise ValueError(
                f"denoise_steps is {self.denoise_steps}, but parallel_block is false and has no masks; "
                "set one of them back"
            )
        if self.denoise_steps >= self.block_size:
            raise ValueError(
                f"denoise_steps is {self.denoise_steps}; expected at most {self.max_depth}, "
                "the slots that block_size leaves to predict"
            )
        return self

    def reach(self, layer: int) -> Reach:
        """Slots that are drafted one by one see only those before them."""
        reach = super().reach(layer)
        return reach if self.parallel_block else Reach(reach.window, causal=True)

    def kept_slots(self, depth: int, step: int) -> int:
        """Of `depth` slots, how many keep their token after `step` forwards."""
        return depth * step // self.denoise_steps
