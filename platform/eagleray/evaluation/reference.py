"""Hugging Face `generate`, greedy: what the engine's plain decoding is held against."""

from pathlib import Path
from typing import Literal, Protocol

import torch

from eagleray.engines.catalog import native_device


class ReferenceModel(Protocol):
    """Completes one prompt greedily, without a drafter."""

    def generate(self, prompt_ids: tuple[int, ...], max_new_tokens: int) -> tuple[int, ...]:
        """Return the emitted ids; the stop token, if one was emitted, is the last."""
        ...


class TransformersReference:
    """The target folder in transformers' own generation loop."""

    def __init__(self, folder: Path, dtype: Literal["float32", "bfloat16"]):
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self.model = model.to(native_device()).eval()

    @torch.inference_mode()
    def generate(self, prompt_ids: tuple[int, ...], max_new_tokens: int) -> tuple[int, ...]:
        """See `ReferenceModel`."""
        ids_BT = torch.tensor([prompt_ids], device=self.model.device)
        output_BT = self.model.generate(
            input_ids=ids_BT,
            attention_mask=torch.ones_like(ids_BT),
            max_new_tokens=max_new_tokens,
            do_sample=False,
        )
        return tuple(output_BT[0, len(prompt_ids) :].tolist())
