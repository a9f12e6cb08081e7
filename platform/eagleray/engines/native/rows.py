"""One running answer, and the rule by which verified tokens become part of it.

Tokens are committed one by one: the first stop token, or the first that completes a stop string,
ends the answer wherever it stands in an accepted draft, and what was verified after it reaches
neither ids nor counts. No tensors here except captured features, which are only kept.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from eagleray.corpus.answer_text import AnswerText
from eagleray.engines.base import (
    CapturedFeatures,
    FinishReason,
    Generation,
    GenerationRequest,
    TokenScore,
)
from eagleray.engines.native.prefixes import block_keys
from eagleray.speculation.acceptance import Cycle
from eagleray.speculation.config import SamplingConfig
from eagleray.speculation.sampling import Uniforms

Use = Literal["choose", "draft", "accept"]
"""What a random number decides: the target's token, a drafted one, or whether that is accepted."""


class Row:
    """The state of one request.

    Args:
        max_answer_tokens: The request's own bound and the context window's, whichever is smaller.
        text: Looks for stop strings; None where the request has none.
    """

    def __init__(
        self,
        request: GenerationRequest,
        max_answer_tokens: int,
        stop_ids: frozenset[int],
        text: AnswerText | None = None,
    ):
        self.request = request
        self.finish_reason: FinishReason | None = None
        self.lossy = False
        """Whether drafting may change the distribution of the answer."""
        self.max_answer_tokens = max_answer_tokens
        self.prefilled = 0
        """Prompt tokens that the target has run."""
        self.reused = 0
        """Those of them that were copied from an earlier prompt."""
        self.answer_ids: list[int] = []
        self.scores: list[TokenScore] = []
        self.stop_ids = stop_ids
        self._text = text
        self._uniforms: dict[Use, Uniforms] = {
            "choose": Uniforms(request.seed),
            "draft": Uniforms(f"{request.seed} draft"),
            "accept": Uniforms(f"{request.seed} accept"),
        }
        self._cycles: list[Cycle] = []
        self._captured: list[tuple[Tensor, Tensor]] = []

    @cached_property
    def block_keys(self) -> tuple[bytes, ...]:
        """What the blocks of the prompt are known by."""
        return block_keys(self.request.prompt_ids)

    @property
    def room(self) -> int:
        """Tokens that may still be emitted."""
        return self.max_answer_tokens - len(self.answer_ids)

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that the target has still to run."""
        return len(self.request.prompt_ids) - self.prefilled

    def followers(self, start: int, end: int) -> list[int]:
        """The tokens that follow positions start..end-1 of the prompt, of which the last may be the
        answer's."""
        return [*self.request.prompt_ids, *self.answer_ids[:1]][start + 1 : end + 1]

    @property
    def anchor(self) -> int:
        """The newest committed token."""
        return self.answer_ids[-1]

    @property
    def sampling(self) -> SamplingConfig:
        """How the target's tokens are chosen."""
        return self.request.sampling

    @property
    def newest_cycle(self) -> Cycle:
        """Counts of the last verification."""
        return self._cycles[-1]

    def uniforms(self, count: int, use: Use = "choose") -> list[float]:
        """The random numbers of the next `count` places of the answer.

        Each place has one for each use. A place may be drafted again after a refusal, with the same numbers:
        nothing that was committed depends on what they were used for behind it.
        """
        return self._uniforms[use].span(len(self.answer_ids), count)

    def draftable(self, depth: int) -> int:
        """Draft tokens of the next cycle, of `depth` at most. The bonus token takes the last place, so a
        draft never fills the room that is left."""
        asked = self.request.draft_depth
        return min(depth if asked is None else min(depth, asked), self.room - 1)

    def start(self, first_id: int) -> None:
        """Commit the token that prefill yields; it belongs to no cycle."""
        self._extend([first_id])

    def commit(self, verified_ids: Sequence[int], drafted: int) -> int:
        """Commit the outcome of one cycle and count it.

        Args:
            verified_ids: Accepted draft tokens, then the bonus token.
            drafted: Draft tokens that were verified for this row, of a tree those on its deepest path.

        Returns:
            Tokens delivered, at least 1.
        """
        delivered = self._extend(verified_ids)
        accepted = min(delivered, len(verified_ids) - 1)
        self._cycles.append(Cycle(drafted=drafted, accepted=accepted, delivered=delivered))
        return delivered

    def keep(self, features_TLD: Tensor, final_TD: Tensor) -> None:
        """Take in the features of the next committed positions."""
        self._captured.append((features_TLD, final_TD))

    def generation(self) -> Generation:
        """The finished answer."""
        assert self.finish_reason is not None, "the row is still running"
        captured = None
        if self._captured:
            features, final = (torch.cat(pieces) for pieces in zip(*self._captured, strict=True))
            captured = CapturedFeatures(features_TLD=features, final_TD=final)
        return Generation(
            request_id=self.request.request_id,
            prompt_ids=self.request.prompt_ids,
            answer_ids=tuple(self.answer_ids),
            finish_reason=self.finish_reason,
            cycles=tuple(self._cycles),
            stop_string=self._text.stopped_by if self._text else None,
            lossy=self.lossy,
            reused_prompt_tokens=self.reused,
            scores=None if self.request.log_probabilities is None else tuple(self.scores),
            captured=captured,
        )

    def _extend(self, ids: Sequence[int]) -> int:
        fitting = ids[: self.room]
        for count, token in enumerate(fitting, start=1):
            self.answer_ids.append(token)
            if token in self.stop_ids or self._completes_stop_string(token):
                self.finish_reason = "stop"
                return count
        if self.room == 0:
            self.finish_reason = "length"
        return len(fitting)

    def _completes_stop_string(self, token: int) -> bool:
        if self._text is None:
            return False
        self._text.push([token])
        return self._text.stopped_by is not None
