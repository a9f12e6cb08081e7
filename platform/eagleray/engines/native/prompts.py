"""Running prompts into slots: what is kept of earlier ones is copied, the rest is computed, in pieces.

Shapes: T prompt tokens of all rows, B rows, Q positions of the longest row, L tapped layers, D target width.
"""

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eagleray.engines.native.choosing import choose, tell_scores
from eagleray.engines.native.drafts import ChainDraft
from eagleray.engines.native.prefixes import PrefixCache
from eagleray.engines.native.rows import Row
from eagleray.engines.native.slots import Slots
from eagleray.engines.native.stopwatch import Stopwatch
from eagleray.targets.decoder import TargetDecoder


class Prompts:
    """Brings rows to their first token.

    Args:
        kept: Beginnings of earlier prompts.
    """

    def __init__(self, slots: Slots, decoder: TargetDecoder, kept: PrefixCache, stopwatch: Stopwatch):
        self.kept = kept
        self._slots = slots
        self._decoder = decoder
        self._stopwatch = stopwatch

    def enter(self, row: Row) -> None:
        """Give a row the next slot, and copy what is kept of the beginning of its prompt."""
        slots = self._slots
        with self._stopwatch.phase("prefill"):
            slot = len(slots.rows) + len(slots.entering)
            slots.entering.append(row)
            blocks = self.kept.take(row)
            for block in blocks:
                slots.cache.append(slot, block.keys_values)
            if blocks:
                features_TLD = torch.cat([block.features_SLD for block in blocks])
                final_TD = torch.cat([block.final_SD for block in blocks])
                row.reused = len(final_TD)
                self._tell(slot, [row], [row.reused], features_TLD, final_TD)

    def run(self, counts: list[int]) -> None:
        """Run the next prompt tokens of the entering rows, so many of each, in one forward.

        All but the last one reach the end of their prompts. Where a prompt is whole, the token that follows
        it is committed, and its row decodes from now on.
        """
        slots = self._slots
        with self._stopwatch.phase("prefill"):
            first_slot, entering = len(slots.rows), slots.entering
            ids = [
                token
                for row, count in zip(entering, counts, strict=True)
                for token in row.request.prompt_ids[row.prefilled : row.prefilled + count]
            ]
            features_TLD, final_TD = self._decoder.prefill(
                torch.tensor(ids, device=self._decoder.device),
                counts,
                slots.cache,
                first_slot,
                slots.taps.layers,
            )
            pieces = zip(entering, counts, features_TLD.split(counts), final_TD.split(counts), strict=True)
            for slot, (row, count, features, final) in enumerate(pieces, first_slot):
                self.kept.keep(row, count, slots.cache, slot, features, final)
            whole = [row for row, count in zip(entering, counts, strict=True) if row.prompt_left == count]
            self._start(whole, counts, final_TD)
            self._tell(first_slot, entering, counts, features_TLD, final_TD)
            slots.rows.extend(whole)
            slots.entering = entering[len(whole) :]

    def _start(self, rows: list[Row], counts: list[int], final_TD: Tensor) -> None:
        """Commit the token that follows the prompt of each of the first rows."""
        if not rows:
            return
        ends_B = torch.tensor(counts[: len(rows)], device=final_TD.device).cumsum(0)
        logits_B1V = self._decoder.logits(final_TD[ends_B - 1])[:, None]
        nothing = ChainDraft.nothing(len(rows), final_TD.device)
        for row, first_id in zip(rows, choose(logits_B1V, rows, nothing)[:, 0].tolist(), strict=True):
            row.start(first_id)
        tell_scores(rows, logits_B1V, [1] * len(rows))

    def _tell(
        self, first_slot: int, rows: list[Row], counts: list[int], features_TLD: Tensor, final_TD: Tensor
    ) -> None:
        """Hand out what the target made of the next prompt tokens."""
        followers = []
        for row, count in zip(rows, counts, strict=True):
            ids = row.followers(row.prefilled, row.prefilled + count)
            followers.append(torch.tensor(ids, device=final_TD.device))
            row.prefilled += count
        if not self._slots.heard:
            return
        features_BQLD, final_BQD, next_ids_BQ = (
            pad_sequence(list(of_rows), batch_first=True)
            for of_rows in (features_TLD.split(counts), final_TD.split(counts), followers)
        )
        self._slots.tell(
            first_slot, rows, counts, features_BQLD, final_BQD, next_ids_BQ, later=self._slots.adaptive
        )
