"""The reduced vocabulary of a drafter: the target ids that answers use most.

On disk it is `d2t` (per draft id the offset to its target id) and `t2d` (per target id whether it
is kept). The two say the same thing twice, and loading insists that they agree: with a lost or
zeroed map a server would take draft ids for target ids and accept nothing, without an error.
Shapes: V target vocabulary, U draft vocabulary, N tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eagleray.errors import ArtifactError, ConfigError
from eagleray.targets.heads import FrozenHeads

D2T = "d2t"
T2D = "t2d"


@dataclass(frozen=True)
class DraftVocabulary:
    """The kept target ids, ascending."""

    ids_U: Tensor
    target_size: int

    @classmethod
    def from_counts(cls, counts_V: Tensor, size: int) -> "DraftVocabulary":
        """Keep the `size` target ids with the highest counts; among equal counts the lower id.

        Args:
            counts_V: How often each target id is a supervised token.

        Raises:
            ConfigError: `size` is larger than the target vocabulary.
        """
        if not 0 < size <= len(counts_V):
            raise ConfigError(
                f"drafter.draft_vocab_size is {size}; expected 1 to {len(counts_V)}, the target vocabulary."
            )
        order_V = counts_V.sort(descending=True, stable=True).indices
        return cls(order_V[:size].sort().values, len(counts_V))

    @classmethod
    def choose(cls, size: int, heads: FrozenHeads, counts_V: Tensor | None) -> "DraftVocabulary":
        """The vocabulary of a fresh drafter: all of the target's if `size` covers it, else by counts.

        Raises:
            ConfigError: Counts are needed, but there are none.
        """
        target_size = heads.geometry.vocab_size
        if size >= target_size:
            return cls(torch.arange(target_size), target_size)
        if counts_V is None:
            raise ConfigError(
                f"drafter.draft_vocab_size is {size}, but no supervised tokens were counted to choose "
                f"ids from. Give a training dataset, or set it to {target_size}, the target vocabulary."
            )
        return cls.from_counts(counts_V, size)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], target_size: int, origin: Path) -> "DraftVocabulary":
        """Rebuild from `d2t` and `t2d`.

        Raises:
            ArtifactError: One is missing, or they do not describe one ascending set of target ids.
        """
        for name in (D2T, T2D):
            if name not in tensors:
                raise ArtifactError(
                    f"Drafter {origin} has no tensor {name!r}, so its draft ids have no meaning. "
                    "Export the drafter again."
                )
        d2t_U, t2d_V = tensors[D2T].long(), tensors[T2D].bool()
        if t2d_V.shape != (target_size,):
            raise ArtifactError(
                f"Drafter {origin}: t2d has shape {tuple(t2d_V.shape)}; expected ({target_size},), the "
                "target vocabulary. The drafter was made for another target."
            )
        ids_U = d2t_U + torch.arange(len(d2t_U), device=d2t_U.device)
        if not torch.equal(ids_U, t2d_V.nonzero().flatten()):
            raise ArtifactError(
                f"Drafter {origin}: d2t and t2d disagree. d2t (offsets) gives {len(ids_U)} ids starting "
                f"{ids_U[:4].tolist()}, t2d keeps {int(t2d_V.sum())} starting "
                f"{t2d_V.nonzero().flatten()[:4].tolist()}. "
                "Export the drafter again."
            )
        return cls(ids_U, target_size)

    @property
    def d2t_U(self) -> Tensor:
        """Offsets: target id = draft id + d2t[draft id]."""
        return self.ids_U - torch.arange(len(self.ids_U), device=self.ids_U.device)

    @property
    def t2d_V(self) -> Tensor:
        """Which target ids are kept."""
        kept_V = torch.zeros(self.target_size, dtype=torch.bool, device=self.ids_U.device)
        kept_V[self.ids_U] = True
        return kept_V
