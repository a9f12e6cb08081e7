"""The frozen target, run by ourselves: prompts, decode steps and feature capture.

An inference-only forward of Llama-type decoders. Rows of unequal length lie on one token axis, so
padding is never computed. Results of a row alone, in a batch and in a verification of several
tokens agree bitwise where compiled code runs (float32 on a CPU; see `targets/kernels`), elsewhere to
rounding. Without a compiler a batch invariant decoder gives the same bits for head widths up to 64 and
sequences below some 400 tokens, where the matrix library begins to split its sums.

The feature of layer i is the residual stream after layer i (Hugging Face `hidden_states[i + 1]`);
`final` is the last one after the final norm, the input of lm_head.
Shapes: B rows, T sequence positions or tokens of all rows, Q new tokens of each row, L asked
layers, D target width, V target vocabulary.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.errors import ArtifactError, ConfigError
from eagleray.targets.attention import (
    Attention,
    CompiledStepAttention,
    ExactTreeAttention,
    PromptAttention,
    StepAttention,
    StepPlaces,
    TreeAttention,
)
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.heads import EMBEDDING, LM_HEAD, FrozenHeads
from eagleray.targets.kernels import step
from eagleray.targets.kv_cache import KVCache
from eagleray.targets.layers import DecoderLayer, RMSNorm
from eagleray.targets.linear import FrozenLinear
from eagleray.targets.padding import run_without_padding, stack_features
from eagleray.targets.rotary import Rotary
from eagleray.targets.weights import FINAL_NORM, read_weights, select_layer


class TargetDecoder:
    """A target's weights and its forward."""

    def __init__(
        self, geometry: TargetGeometry, weights: Mapping[str, Tensor], *, batch_invariant: bool = False
    ):
        """Build from tensors under their Hugging Face names.

        Args:
            batch_invariant: Where no compiled code runs, give up some speed of single rows for results that
                do not depend on what else is in the forward; see `targets/linear.py`.

        Raises:
            ArtifactError: The activation or the rope scaling is not one that we run.
        """
        if geometry.hidden_act != "silu":
            raise ArtifactError(
                f"Target has hidden_act {geometry.hidden_act!r}; the native decoder runs 'silu'. "
                "Choose another target, or serve this one with another engine."
            )
        embedding = weights[EMBEDDING]
        self.geometry = geometry
        self.heads = FrozenHeads(
            geometry=geometry, embed_VD=embedding, lm_head_VD=weights.get(LM_HEAD, embedding)
        )
        self.batch_invariant = batch_invariant
        self.dtype = embedding.dtype
        self.device = embedding.device
        self._rotary = Rotary(geometry, self.device)
        self._layers = [
            DecoderLayer(geometry, index, select_layer(weights, index), batch_invariant=batch_invariant)
            for index in range(geometry.num_layers)
        ]
        self._final_norm = RMSNorm(weights[FINAL_NORM], geometry.rms_norm_eps)
        self._lm_head = FrozenLinear(self.heads.lm_head_VD, batch_invariant=batch_invariant)

    @classmethod
    def load(
        cls,
        folder: Path,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        *,
        batch_invariant: bool = False,
    ) -> "TargetDecoder":
        """Load the safetensors of a Hugging Face folder.

        Raises:
            ArtifactError: Not such a folder, or a tensor is missing, unknown or of another shape.
        """
        geometry = TargetGeometry.read(folder)
        weights = read_weights(folder, geometry, dtype, lambda _: torch.device(device))
        return cls(geometry, weights, batch_invariant=batch_invariant)

    def new_cache(self, max_rows: int, max_length: int, max_positions: int | None = None) -> KVCache:
        """An empty cache for at most `max_rows` sequences of at most `max_length` positions; see
        `KVCache`."""
        return KVCache(self.geometry, max_rows, max_length, self.dtype, self.device, max_positions)

    @torch.no_grad()
    def prefill(
        self,
        ids_T: Tensor,
        lengths: Sequence[int],
        cache: KVCache,
        first_row: int,
        layers: tuple[int, ...] = (),
    ) -> tuple[Tensor, Tensor]:
        """Run prompts into cache rows first_row, first_row + 1, ..., each after what its row holds already.

        A prompt may come in pieces. On a CPU its bits do not depend on them where they end at multiples of
        `PROMPT_BLOCK`.

        Args:
            ids_T: Ids of all pieces, one after another.
            lengths: Length of each piece, at least 1.

        Returns:
            features_TLD and final_TD.

        Raises:
            ConfigError: The target attends to a sliding window shorter than a sequence.
        """
        rows = range(first_row, first_row + len(lengths))
        longest = max(cache.lengths[row] + length for row, length in zip(rows, lengths, strict=True))
        check_window(self.geometry, longest)
        cache.reserve(rows.stop, longest)
        outputs = self._forward(ids_T, PromptAttention(lengths, self.device, cache, first_row), layers)
        for row, length in zip(rows, lengths, strict=True):
            cache.advance(row, length)
        return outputs

    @torch.no_grad()
    def step(
        self,
        ids_BQ: Tensor,
        cache: KVCache,
        layers: tuple[int, ...] = (),
        ancestry_BQQ: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run Q new tokens after each of the cache rows 0..B-1.

        Keys and values are written after each row's length; the caller advances the lengths by as
        many positions as it keeps. After a tree, `cache.compact` comes before that.

        Args:
            ancestry_BQQ: The new tokens are a tree: whether one is another's ancestor or itself. None: a
                chain.

        Returns:
            features_BQLD and final_BQD.

        Raises:
            ConfigError: The target attends to a sliding window that a row has filled.
        """
        rows, queries = ids_BQ.shape
        longest = max(cache.lengths[:rows])
        # What a draft adds past the window is never committed, so only the first new token counts.
        check_window(self.geometry, longest + 1)
        cache.reserve(rows, longest + queries)
        if step.fits(cache.keys[0], self.geometry.head_dim):
            return self._run_step(ids_BQ, CompiledStepAttention(cache, rows, queries, ancestry_BQQ), layers)
        places = StepPlaces.of(cache, rows, queries, self.device)
        return self.step_at(places, ids_BQ, cache, layers, ancestry_BQQ)

    @torch.no_grad()
    def step_at(
        self,
        places: StepPlaces,
        ids_BQ: Tensor,
        cache: KVCache,
        layers: tuple[int, ...] = (),
        ancestry_BQQ: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`step` in torch alone, for a cache with room enough: it launches the same work whatever the tensors
        hold, and waits for none of it."""
        group = self.geometry.num_heads // self.geometry.num_kv_heads
        attention: Attention
        if ancestry_BQQ is None:
            attention = StepAttention(cache, places, ids_BQ.shape[1], group)
        else:
            tree = ExactTreeAttention if self.batch_invariant else TreeAttention
            attention = tree(cache, places, ancestry_BQQ, group)
        return self._run_step(ids_BQ, attention, layers)

    @torch.no_grad()
    def capture(self, ids_BT: Tensor, lengths_B: Tensor, layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Features of right-padded whole sequences; zeros in the padding.

        Returns:
            features_BTLD and final_BTD.
        """
        check_window(self.geometry, ids_BT.shape[1])

        def forward(ids_T: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
            return self._forward(ids_T, PromptAttention(lengths, self.device), layers)

        return run_without_padding(ids_BT, lengths_B, self.device, forward)

    @torch.no_grad()
    def logits(self, final: Tensor) -> Tensor:
        """Apply lm_head to any number of final hidden states [..., D]; returns [..., V]."""
        return self._lm_head(final.flatten(0, -2)).unflatten(0, final.shape[:-1])

    def _forward(self, ids_T: Tensor, attention: Attention, layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        hidden_TD = F.embedding(ids_T, self.heads.embed_VD)
        rotation = self._rotary.factors(attention.positions_T)
        features = []
        for layer in self._layers:
            hidden_TD = layer(hidden_TD, rotation, attention)
            if layer.index in layers:
                features.append(hidden_TD)
        return stack_features(features, hidden_TD), self._final_norm(hidden_TD)

    def _run_step(
        self, ids_BQ: Tensor, attention: Attention, layers: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        features_TLD, final_TD = self._forward(ids_BQ.flatten(), attention, layers)
        return features_TLD.unflatten(0, ids_BQ.shape), final_TD.unflatten(0, ids_BQ.shape)


def check_window(geometry: TargetGeometry, max_length: int) -> None:
    """Check that attending to everything is what the target does.

    Raises:
        ConfigError: It slides its attention over fewer tokens.
    """
    window = geometry.sliding_window
    if window is not None and max_length > window:
        raise ConfigError(
            f"Sequences of up to {max_length} tokens were asked of a target that slides its attention "
            f"over {window}; the native decoder attends to everything. "
            f"Keep prompt and answer within {window} tokens."
        )
