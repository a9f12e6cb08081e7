"""Hugging Face `generate` as a contender: greedy; plain in padded batches, or with drafts for one row."""

from collections.abc import Sequence
from pathlib import Path

import torch

from eagleray.engines.base import GenerationRequest

LOOKED_UP_TOKENS = 10
"""What transformers' documentation sets `prompt_lookup_num_tokens` to."""

ASSISTANT_LAYERS = 6
"""Of the target itself, whose first layers draft: the one assistant that needs no other weights."""

Answers = tuple[list[tuple[int, ...]], int]


class HuggingFace:
    """The target in transformers' own loop."""

    def __init__(self, folder: Path):
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar, set_verbosity_error

        disable_progress_bar()
        set_verbosity_error()  # assisted generation warns of arguments that it passes itself
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        end_ids = self._model.generation_config.eos_token_id
        self._end_ids = set(end_ids if isinstance(end_ids, list) else [end_ids])

    def plain(self, requests: Sequence[GenerationRequest]) -> Answers:
        """One token of every row at a time."""
        return self._answer(requests)

    def lookup(self, requests: Sequence[GenerationRequest]) -> Answers:
        """Copying from the prompt; one row only."""
        return self._answer(requests, prompt_lookup_num_tokens=LOOKED_UP_TOKENS)

    def assisted(self, requests: Sequence[GenerationRequest]) -> Answers:
        """Assisted generation: an early exit drafts as many tokens as `generate` likes; one row only."""
        return self._answer(requests, assistant_early_exit=ASSISTANT_LAYERS)

    @torch.inference_mode()
    def _answer(self, requests: Sequence[GenerationRequest], **how: int) -> Answers:
        prompts = [request.prompt_ids for request in requests]
        longest = max(map(len, prompts))
        ids_BT = torch.tensor([[0] * (longest - len(ids)) + list(ids) for ids in prompts])
        mask_BT = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts])
        out_BT = self._model.generate(
            ids_BT,
            attention_mask=mask_BT,
            max_new_tokens=requests[0].max_new_tokens,
            do_sample=False,
            pad_token_id=0,
            **how,
        )
        return [self._until_end(row) for row in out_BT[:, longest:].tolist()], 0

    def _until_end(self, ids: list[int]) -> tuple[int, ...]:
        """An answer is as long as its first end token says, or as the batch ran."""
        ends = (place + 1 for place, token in enumerate(ids) if token in self._end_ids)
        return tuple(ids[: next(ends, len(ids))])
