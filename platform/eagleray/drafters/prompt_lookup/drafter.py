"""Prompt lookup: copy what followed the most recent earlier occurrence of the newest tokens.

The baseline that costs no forward. A row without such an occurrence drafts nothing, so its
cycle costs what plain decoding costs. The first token of a prompt is never seen (a drafter is
told the token that follows each position), which loses nothing but n-grams that begin there.
"""

from typing import Self

import torch
from torch import Tensor

from eagleray.drafters.base import NO_DRAFT, Committed, DraftSession, DraftSource
from eagleray.drafters.prompt_lookup.config import PromptLookupConfig
from eagleray.targets.heads import FrozenHeads


class History:
    """The tokens of one row, and where each n-gram of them was last continued."""

    def __init__(self, config: PromptLookupConfig):
        self._sizes = range(config.max_ngram, config.min_ngram - 1, -1)
        self._tokens: list[int] = []
        self._continuations: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: list[int]) -> None:
        """Append tokens; each becomes the newest continuation of the n-grams before it."""
        for token in tokens:
            place = len(self._tokens)
            for size in self._sizes:
                if size <= place:
                    self._continuations[tuple(self._tokens[place - size :])] = place
            self._tokens.append(token)

    def propose(self, depth: int) -> list[int]:
        """Copy `depth` tokens from the match of the longest n-gram; empty without a match.

        A copy that reaches the end of the history goes on with itself, as in a repeating text.
        """
        for size in self._sizes:
            place = (
                self._continuations.get(tuple(self._tokens[-size:])) if size <= len(self._tokens) else None
            )
            if place is not None:
                break
        else:
            return []
        period = self._tokens[place : place + depth]
        return [period[slot % len(period)] for slot in range(depth)]


class PromptLookupSession(DraftSession):
    """Histories of the rows of one batch."""

    def __init__(self, config: PromptLookupConfig, max_rows: int):
        self._config = config
        self._histories = [History(config) for _ in range(max_rows)]
        self._device = torch.device("cpu")

    def observe(self, committed: Committed) -> None:
        """Append the committed tokens."""
        self._device = committed.next_ids_BQ.device
        rows, counts = committed.rows_B.tolist(), committed.counts_B.tolist()
        for row, ids, count in zip(rows, committed.next_ids_BQ.tolist(), counts, strict=True):
            self._histories[row].extend(ids[:count])

    def draft(self, num_rows: int, depth: int) -> Tensor:
        """Look every row up."""
        proposals = [history.propose(depth) for history in self._histories[:num_rows]]
        return torch.tensor([proposal or [NO_DRAFT] * depth for proposal in proposals], device=self._device)

    def reset(self, row: int) -> None:
        """Forget a row."""
        self._histories[row] = History(self._config)

    def move(self, source: int, destination: int) -> None:
        """Hand the history of one row to another."""
        self._histories[destination] = self._histories[source]
        self.reset(source)


class PromptLookupDrafter(DraftSource):
    """A drafter without weights."""

    def __init__(self, config: PromptLookupConfig):
        self.config = config
        self.tapped_layers = ()
        self.max_depth = config.max_depth

    @classmethod
    def fresh(cls, config: PromptLookupConfig, heads: FrozenHeads, counts_V: Tensor | None) -> Self:
        """Make one; it needs nothing of the target."""
        return cls(config)

    def open_session(self, max_rows: int, max_length: int) -> DraftSession:
        """Start with empty histories."""
        return PromptLookupSession(self.config, max_rows)
