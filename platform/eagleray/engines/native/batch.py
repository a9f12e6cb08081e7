"""The running batch: admit, cycle, release.

Plain decoding and drafting are the same cycle; plain is a cycle of zero drafts. Active rows stay
in front: when one finishes, the last row moves into its slot, in the cache and in the drafter's
session alike.
Shapes: B rows, T prompt tokens of all rows, Q positions of the longest row, N draft nodes (slots of a
chain), P = N + 1 verified positions, A positions of the longest accepted path, L layers, D target width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eagleray.drafters.base import Committed, DraftSession
from eagleray.engines.base import DraftSetting
from eagleray.engines.native.choosing import choose, score
from eagleray.engines.native.drafts import ChainDraft, TreeDraft
from eagleray.engines.native.observing import Observer
from eagleray.engines.native.rows import Row
from eagleray.engines.native.stopwatch import Stopwatch
from eagleray.speculation.depth import DepthChoice, DepthChooser
from eagleray.speculation.verification import ChainVerdict
from eagleray.targets.decoder import TargetDecoder


@dataclass(frozen=True)
class Taps:
    """The layers that a forward returns, and which of them each reader gets."""

    layers: tuple[int, ...]
    drafter: slice | list[int]
    capture: slice | list[int] | None

    @classmethod
    def join(cls, drafter: tuple[int, ...], capture: tuple[int, ...] | None) -> "Taps":
        """Tap each wanted layer once."""
        layers = tuple(sorted({*drafter, *(capture or ())}))
        return cls(
            layers=layers,
            drafter=_places(drafter, layers),
            capture=None if capture is None else _places(capture, layers),
        )


def _places(wanted: tuple[int, ...], layers: tuple[int, ...]) -> slice | list[int]:
    return slice(None) if wanted == layers else [layers.index(layer) for layer in wanted]


class Verified(NamedTuple):
    """What the target made of a draft, along each row's accepted path; A covers the longest."""

    accepted: list[int]
    """Accepted draft tokens of each row."""
    committed_BA: Tensor
    features_BALD: Tensor
    final_BAD: Tensor
    logits_BAV: Tensor


class RunningBatch:
    """Rows that are decoded together.

    Args:
        max_length: Longest prompt plus answer that may be admitted.
        chooser: Decides how deep each cycle drafts; None always drafts to the setting's depth.
    """

    def __init__(
        self,
        decoder: TargetDecoder,
        draft: DraftSetting | None,
        capture_layers: tuple[int, ...] | None,
        max_rows: int,
        max_length: int,
        stopwatch: Stopwatch,
        chooser: DepthChooser | None = None,
    ):
        self.rows: list[Row] = []
        self._max_rows = max_rows
        self._decoder = decoder
        self._depth = draft.depth if draft else 0
        self._tree = draft.tree if draft else None
        # Verification writes rejected drafts past the end of the longest sequence.
        room = max_length + (self._tree.nodes if self._tree else self._depth)
        self._cache = decoder.new_cache(max_rows, room)
        self._session: DraftSession | None = draft.source.open_session(max_rows, room) if draft else None
        self._observer = Observer(self._session) if self._session else None
        self._chooser = chooser
        self._taps = Taps.join(draft.source.tapped_layers if draft else (), capture_layers)
        self._stopwatch = stopwatch

    @property
    def depth_choice(self) -> DepthChoice | None:
        """How deep cycles of the present rows draft, and why; None where that is not chosen, or not yet."""
        return self._chooser.choice(len(self.rows)) if self._chooser and self.rows else None

    @property
    def free_slots(self) -> int:
        """Rows that may still be admitted."""
        return self._max_rows - len(self.rows)

    def admit(self, rows: Sequence[Row]) -> None:
        """Prefill new rows together and commit the token that follows each prompt."""
        self._settle()
        with self._stopwatch.phase("prefill"):
            first_row = len(self.rows)
            prompts = [torch.tensor(row.request.prompt_ids, device=self._decoder.device) for row in rows]
            lengths = [len(prompt) for prompt in prompts]
            features_TLD, final_TD = self._decoder.prefill(
                torch.cat(prompts), lengths, self._cache, first_row, self._taps.layers
            )
            ends = torch.tensor(lengths, device=self._decoder.device).cumsum(0)
            logits_B1V = self._decoder.logits(final_TD[ends - 1])[:, None]
            nothing = ChainDraft.nothing(len(rows), self._decoder.device)
            first_ids_B = choose(logits_B1V, rows, nothing)[:, 0]
            self.rows.extend(rows)
            for row, first_id in zip(rows, first_ids_B.tolist(), strict=True):
                row.start(first_id)
            self._score(rows, logits_B1V, [1] * len(rows))
            self._keep(rows, features_TLD.split(lengths), final_TD.split(lengths), lengths)
            if self._session is not None:
                next_ids = [
                    torch.cat([prompt[1:], first_id_1])
                    for prompt, first_id_1 in zip(prompts, first_ids_B.split(1), strict=True)
                ]
                features_BQLD, final_BQD, next_ids_BQ = (
                    pad_sequence(rows, batch_first=True)
                    for rows in (features_TLD.split(lengths), final_TD.split(lengths), next_ids)
                )
                self._observe(first_row, lengths, features_BQLD, final_BQD, next_ids_BQ)

    def cycle(self) -> int:
        """Draft and verify once for every row. Returns the tokens delivered."""
        if self._chooser is None:
            return self._cycle(self._depth)
        depth = self._chooser.next_depth(len(self.rows))
        if depth > 0:
            self._settle()
        # A row at its last token cannot draft, which says nothing of the drafter.
        able = [row for row in self.rows if depth == 0 or row.room > 1]
        started_s = perf_counter()
        delivered = self._cycle(depth)
        seconds = perf_counter() - started_s
        if able:
            self._chooser.record(len(self.rows), depth, seconds, [row.newest_cycle for row in able])
        return delivered

    def _cycle(self, depth: int) -> int:
        with self._stopwatch.phase("draft"):
            draft = self._draft(depth)
        with self._stopwatch.phase("verify"):
            accepted, committed_BA, features_BALD, final_BAD, logits_BAV = self._verify(draft)
        delivered, committed = [], committed_BA.tolist()
        for slot, row in enumerate(self.rows):
            kept = min(accepted[slot], draft.levels[slot])
            delivered.append(row.commit(committed[slot][: kept + 1], draft.levels[slot]))
            self._cache.advance(slot, delivered[slot])
        self._score(self.rows, logits_BAV, delivered)
        self._keep(self.rows, features_BALD, final_BAD, delivered)
        with self._stopwatch.phase("draft"):
            later = self._chooser is not None and depth == 0
            self._observe(0, delivered, features_BALD, final_BAD, committed_BA, later=later)
        return sum(delivered)

    def release(self) -> list[Row]:
        """Remove finished rows, free their slots and return them."""
        slots = [slot for slot, row in enumerate(self.rows) if row.finish_reason is not None]
        if slots:
            self._settle()
        # From the back, so that the last row, which fills the gap, is one that stays.
        return [self._vacate(slot) for slot in reversed(slots)]

    def drop(self, request_id: str) -> None:
        """Remove the row of a request, if it runs."""
        for slot, row in enumerate(self.rows):
            if row.request.request_id == request_id:
                self._settle()
                self._vacate(slot)
                return

    def _vacate(self, slot: int) -> Row:
        """Take the row out of a slot and move the last row there."""
        row = self.rows[slot]
        last = len(self.rows) - 1
        if slot != last:
            self.rows[slot] = self.rows[last]
            self._cache.move(last, slot)
            if self._session is not None:
                self._session.move(last, slot)
        self.rows.pop()
        self._cache.reset(last)
        if self._session is not None:
            self._session.reset(last)
        return row

    def _settle(self) -> None:
        """Tell the drafter what it was not told yet."""
        if self._observer is not None:
            with self._stopwatch.phase("draft"):
                self._observer.settle()

    def _draft(self, depth: int) -> ChainDraft | TreeDraft:
        rows = len(self.rows)
        # The bonus token takes the last place, so a draft never fills the room that is left.
        limits = [min(depth, row.room - 1) for row in self.rows]
        if self._session is None or max(limits) == 0:
            return ChainDraft.nothing(rows, self._decoder.device)
        # Always at full depth: what a block drafter proposes for a slot depends on the slots after it, and
        # a row's drafts must not depend on how much room its neighbours have.
        if self._tree is None:
            return ChainDraft.within(self._session.draft(rows, depth), limits)
        return TreeDraft.within(self._session.draft_tree(rows, depth, self._tree), limits)

    def _verify(self, draft: ChainDraft | TreeDraft) -> Verified:
        anchors_B1 = torch.tensor([[row.anchor] for row in self.rows], device=self._decoder.device)
        ids_BP = torch.cat([anchors_B1, draft.ids_BN.clamp(min=0)], dim=1)
        features_BPLD, final_BPD = self._decoder.step(
            ids_BP, self._cache, self._taps.layers, draft.ancestry_BPP
        )
        logits_BPV = self._decoder.logits(final_BPD)
        verdict = draft.verify(choose(logits_BPV, self.rows, draft))
        accepted = verdict.accepted_B.tolist()
        if isinstance(verdict, ChainVerdict):
            return Verified(accepted, verdict.committed_BP, features_BPLD, final_BPD, logits_BPV)
        path_BA = verdict.path_BP[:, : max(accepted) + 1]
        self._cache.compact(path_BA)
        slots_B1 = torch.arange(len(path_BA), device=path_BA.device)[:, None]
        committed_BA = verdict.committed_BP[:, : path_BA.shape[1]]
        along_paths = (tensor[slots_B1, path_BA] for tensor in (features_BPLD, final_BPD, logits_BPV))
        return Verified(accepted, committed_BA, *along_paths)

    @staticmethod
    def _score(rows: Sequence[Row], logits_BAV: Tensor, counts: Sequence[int]) -> None:
        """Tell rows that ask for it how likely their newest tokens were."""
        for row, logits_AV, count in zip(rows, logits_BAV, counts, strict=True):
            likeliest = row.request.log_probabilities
            if likeliest is not None:
                row.scores += score(logits_AV[:count], row.answer_ids[-count:], likeliest)

    def _keep(
        self,
        rows: Sequence[Row],
        features: Sequence[Tensor] | Tensor,
        final: Sequence[Tensor] | Tensor,
        counts: Sequence[int],
    ) -> None:
        if self._taps.capture is None:
            return
        for row, row_features, row_final, count in zip(rows, features, final, counts, strict=True):
            row.keep(row_features[:count, self._taps.capture], row_final[:count])

    def _observe(
        self,
        first_row: int,
        counts: list[int],
        features_BQLD: Tensor,
        final_BQD: Tensor,
        next_ids_BQ: Tensor,
        *,
        later: bool = False,
    ) -> None:
        """Tell the drafter what was committed in the rows from `first_row` on that still run."""
        if self._observer is None:
            return
        running = [place for place, row in enumerate(self.rows[first_row:]) if row.finish_reason is None]
        if not running:
            return
        if len(running) < len(counts):
            features_BQLD, final_BQD, next_ids_BQ = (
                rows[running] for rows in (features_BQLD, final_BQD, next_ids_BQ)
            )
        device = self._decoder.device
        committed = Committed(
            rows_B=torch.tensor([first_row + place for place in running], device=device),
            features_BQLD=features_BQLD[:, :, self._taps.drafter],
            final_BQD=final_BQD,
            next_ids_BQ=next_ids_BQ,
            counts_B=torch.tensor([counts[place] for place in running], device=device),
        )
        if later:
            self._observer.hold(committed)
        else:
            self._observer.tell(committed)
