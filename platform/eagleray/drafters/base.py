"""What a drafter is, seen from the engine and from the trainer.

Protocol of one decode, per row of a batch: after prefill, and after every verification, the
engine calls `observe` with the target features of the newly committed positions and with the
token that follows each of them; the last such token is the newest committed one (the anchor),
whose own features do not exist yet. Then `draft` or `draft_tree` proposes the tokens after the
anchor. A session owns whatever cache the drafter needs; rejected drafts never reach it, so nothing
is rolled back.

Shapes: B batch rows, T sequence positions, Q newly committed positions (padded to the longest
row), L tapped layers, D target width, V target vocabulary, K draft slots.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from eagleray.speculation.config import SamplingConfig, TreeSetting
from eagleray.speculation.trees import TokenTree

NO_DRAFT = -1
"""Fills the slots of a draft that a row has no proposal for."""


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """Sequences the target emitted, right-padded, with the features of their positions.

    A row holds one sample, or several one after the other: a training step must give the sums that it would
    give if each had a row to itself. Positions count from the beginning of a row.
    """

    ids_BT: Tensor
    """int64 token ids; what lies beyond a row's length is arbitrary."""

    lengths_B: Tensor
    """int64 true lengths. Padding is known from these, never from an id."""

    supervised_BT: Tensor
    """bool; True where the token itself is an answer token that the target emitted. False in padding."""

    features_BTLD: Tensor
    """Outputs of the tapped layers. The last position of a row may be zeros: nothing follows it."""

    final_BTD: Tensor
    """Last hidden state after the target's final norm, i.e. the input of its lm_head."""

    seed: int
    """Drives every random choice of the step (anchors, noise), so that a resumed step repeats exactly."""

    packed: tuple[tuple[int, ...], ...] | None = None
    """Lengths of the samples of each row, in order; they sum up to `lengths_B`. None: a row is one sample."""

    @cached_property
    def starts_BT(self) -> Tensor:
        """Where the sample of each position begins."""
        return torch.zeros_like(self.ids_BT) if self.packed is None else self._bounds[0]

    @cached_property
    def ends_BT(self) -> Tensor:
        """Where the sample of each position ends, exclusive; padding lies at or beyond it."""
        if self.packed is None:
            return self.lengths_B[:, None].expand_as(self.ids_BT)
        return self._bounds[1]

    @cached_property
    def samples(self) -> list[tuple[int, int, int]]:
        """Row, start and end of each sample, in order."""
        packed = ((length,) for length in self.lengths_B.tolist()) if self.packed is None else self.packed
        return [
            (row, start, end)
            for row, lengths in enumerate(packed)
            for start, end in pairwise(accumulate(lengths, initial=0))
        ]

    @cached_property
    def _bounds(self) -> Tensor:
        """Starts and ends [2, B, T]; both are the row's length in padding."""
        bounds_2BT = self.lengths_B[:, None].expand_as(self.ids_BT).repeat(2, 1, 1)
        for row, start, end in self.samples:
            bounds_2BT[0, row, start:end] = start
            bounds_2BT[1, row, start:end] = end
        return bounds_2BT


class StepTerms(NamedTuple):
    """A training step's loss as a sum and its weight, so that any split of a batch adds up.

    The loss of an optimiser step is sum(loss_sum) / sum(weight_sum) over micro-batches and ranks.
    A tuple, because sharding wrappers look for the tensors of an output in tuples, not in dataclasses.
    """

    loss_sum: Tensor
    """Scalar with gradient: the weighted sum of token losses."""

    weight_sum: Tensor
    """Scalar without gradient: what `loss_sum` is divided by, over the whole optimiser step."""

    correct_K: Tensor
    """Per draft slot: supervised predictions whose arg max is the target's token."""

    counted_K: Tensor
    """Per draft slot: supervised predictions."""


@dataclass(frozen=True, kw_only=True)
class Committed:
    """Newly committed positions of some session rows, padded to the longest."""

    rows_B: Tensor
    """int64 session rows."""

    features_BQLD: Tensor
    """Outputs of the tapped layers at each row's next `counts_B` positions, in order."""

    final_BQD: Tensor
    """Last hidden state after the target's final norm, at the same positions."""

    next_ids_BQ: Tensor
    """The token that follows each of these positions."""

    counts_B: Tensor
    """How many of the Q positions are real for each row; the rest is padding. Zero is allowed."""


class DrawnDraft(NamedTuple):
    """A chain whose tokens were drawn."""

    ids_BK: Tensor
    """int64 target ids; none is `NO_DRAFT`."""

    probabilities_BKV: Tensor
    """float64: what each was drawn from, given the ones before it."""


class DraftSession(ABC):
    """The state of a drafter over the rows of one running batch."""

    @abstractmethod
    def observe(self, committed: Committed) -> None:
        """Take in newly committed positions."""

    @abstractmethod
    def draft(self, num_rows: int, depth: int) -> Tensor:
        """Propose up to `depth` tokens after the anchor of rows 0..num_rows-1.

        Returns:
            int64 [num_rows, depth], target ids. A row that has less to propose fills its last slots with
            `NO_DRAFT`; they are not verified and count as not drafted.
        """

    def draft_tree(self, num_rows: int, depth: int, tree: TreeSetting) -> TokenTree:
        """Propose a tree of at most `depth` levels and `tree.nodes` nodes for each of rows 0..num_rows-1.

        A drafter that does not branch gives its chain: `depth` nodes at most, in one line.
        """
        return TokenTree.chain(self.draft(num_rows, min(depth, tree.nodes)))

    def draw(
        self, num_rows: int, depth: int, samplings: Sequence[SamplingConfig], uniforms_BK: Tensor
    ) -> DrawnDraft:
        """Like `draft`, but every token is drawn from the drafter's distribution, sampled as its row's tokens
        are.

        Asked only of a source that `can_draw`.

        Args:
            uniforms_BK: The random number of each slot.
        """
        raise NotImplementedError(f"{type(self).__name__} draws no drafts")

    @abstractmethod
    def reset(self, row: int) -> None:
        """Forget a row, so that a new sequence can start in it."""

    @abstractmethod
    def move(self, source: int, destination: int) -> None:
        """Move the state of row `source` over row `destination` (the engine keeps active rows in front).

        A row that was never observed may move, too: the engine keeps what a drafter need not know yet.
        """


class DraftSource(ABC):
    """Anything an engine can draft with, trained or not."""

    tapped_layers: tuple[int, ...]
    """Target layers whose outputs `observe` receives, strictly increasing, 0-based. Empty: none."""

    max_depth: int | None
    """Largest draft depth, None if unbounded."""

    can_draw: bool = False
    """Whether its sessions draw drafts."""

    @abstractmethod
    def open_session(self, max_rows: int, max_length: int) -> DraftSession:
        """Allocate state for a batch of at most `max_rows` rows of at most `max_length` positions."""


class TrainableDrafter(nn.Module, DraftSource):
    """A drafter with weights. Calling it with a `TrainingBatch` is a training step and returns `StepTerms`.

    Frozen parts of the target (embedding, lm_head) are held without being registered, so parameters,
    gradients, checkpoints and exports hold the drafter alone.
    """

    token_matrices: frozenset[str] = frozenset({"lm_head"})
    """Modules and parameters whose rows belong to single tokens. An optimiser must not mix what one token
    teaches into the rows of others, as orthogonalising an update does."""

    @abstractmethod
    def forward(self, batch: TrainingBatch) -> StepTerms:
        """One training step's forward."""

    @abstractmethod
    def export_config(self) -> dict[str, Any]:
        """Content of `config.json` in the form that SGLang and vLLM load."""

    @abstractmethod
    def export_profile(self) -> dict[str, Any]:
        """What `config.json` does not say: algorithm, settings, anchor and id conventions."""

    @abstractmethod
    def export_tensors(self) -> dict[str, Tensor]:
        """Tensors under the names that SGLang and vLLM load."""

    @abstractmethod
    def load_tensors(self, tensors: dict[str, Tensor], origin: Path) -> None:
        """Load what `export_tensors` wrote.

        Raises:
            ArtifactError: A name is missing or unknown, or a shape differs; the message names it.
        """

    def warm_start(self, tensors: dict[str, Tensor], origin: Path) -> None:
        """Take the weights of an earlier drafter, to train on from them.

        Raises:
            ArtifactError: They are not those of a drafter that this one can go on from.
        """
        self.load_tensors(tensors, origin)

    def num_parameters(self) -> int:
        """Trainable parameters."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)
