"""The running batch: enter, prefill, cycle, release.

Plain decoding and drafting are the same cycle; plain is a cycle of zero drafts. Decoding rows stay in
front, those whose prompts are still run stand behind them: when a row finishes, the last ones move up, in
the cache and in the drafter's session alike.
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
from eagleray.engines.native.choosing import choose, judge, score
from eagleray.engines.native.drafts import ChainDraft, DrawnChain, TreeDraft
from eagleray.engines.native.memory import CacheBudget
from eagleray.engines.native.observing import Observer
from eagleray.engines.native.prefixes import PrefixCache
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
        max_length: Longest prompt plus answer that may enter.
        budget: Bounds the cache; the caller lets no more rows in than it holds.
        prefixes: Where beginnings of prompts are kept.
        chooser: Decides how deep each cycle drafts; None always drafts to the setting's depth.
    """

    def __init__(
        self,
        decoder: TargetDecoder,
        draft: DraftSetting | None,
        capture_layers: tuple[int, ...] | None,
        max_rows: int,
        max_length: int,
        budget: CacheBudget,
        prefixes: PrefixCache,
        stopwatch: Stopwatch,
        chooser: DepthChooser | None = None,
    ):
        self.rows: list[Row] = []
        """Those that decode."""
        self.entering: list[Row] = []
        """Those whose prompts have still to be run, in the slots behind."""
        self.budget = budget
        self.prefixes = prefixes
        self._max_rows = max_rows
        self._decoder = decoder
        self._depth = draft.depth if draft else 0
        self._tree = draft.tree if draft else None
        self._drawn = draft is not None and draft.drawn
        self._typical = draft.typical if draft else None
        # Verification writes rejected drafts past the end of the longest sequence.
        room = max_length + budget.draft_room
        self._cache = decoder.new_cache(max_rows, room, budget.positions)
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
        """Rows that may still enter."""
        return self._max_rows - len(self.rows) - len(self.entering)

    def holds(self, row: Row) -> bool:
        """Whether there is a slot for one more row, and room for what it may grow to."""
        return self.free_slots > 0 and self.budget.holds([*self.rows, *self.entering, row])

    def enter(self, row: Row) -> None:
        """Give a row the next slot, and copy what is kept of the beginning of its prompt."""
        self._settle()
        with self._stopwatch.phase("prefill"):
            slot = len(self.rows) + len(self.entering)
            row.lossy = self._typical is not None and not row.sampling.greedy
            self.entering.append(row)
            blocks = self.prefixes.take(row)
            for block in blocks:
                self._cache.append(slot, block.keys_values)
            if blocks:
                features_TLD = torch.cat([block.features_SLD for block in blocks])
                final_TD = torch.cat([block.final_SD for block in blocks])
                row.reused = len(final_TD)
                self._take_in(slot, [row], [row.reused], features_TLD, final_TD)

    def prefill(self, counts: list[int]) -> None:
        """Run the next prompt tokens of the entering rows, so many of each, in one forward.

        All but the last one reach the end of their prompts. Where a prompt is whole, the token that follows
        it is committed, and its row decodes from now on.
        """
        self._settle()
        with self._stopwatch.phase("prefill"):
            first_slot, entering = len(self.rows), self.entering
            ids = [
                token
                for row, count in zip(entering, counts, strict=True)
                for token in row.request.prompt_ids[row.prefilled : row.prefilled + count]
            ]
            features_TLD, final_TD = self._decoder.prefill(
                torch.tensor(ids, device=self._decoder.device),
                counts,
                self._cache,
                first_slot,
                self._taps.layers,
            )
            pieces = zip(entering, counts, features_TLD.split(counts), final_TD.split(counts), strict=True)
            for slot, (row, count, features, final) in enumerate(pieces, first_slot):
                self.prefixes.keep(row, count, self._cache, slot, features, final)
            whole = [row for row, count in zip(entering, counts, strict=True) if row.prompt_left == count]
            if whole:
                ends = torch.tensor(counts[: len(whole)], device=self._decoder.device).cumsum(0)
                self._start(whole, self._decoder.logits(final_TD[ends - 1])[:, None])
            self._take_in(first_slot, entering, counts, features_TLD, final_TD)
            self.rows.extend(whole)
            self.entering = entering[len(whole) :]

    def _start(self, rows: Sequence[Row], logits_B1V: Tensor) -> None:
        """Commit the token that follows each prompt."""
        nothing = ChainDraft.nothing(len(rows), self._decoder.device)
        for row, first_id in zip(rows, choose(logits_B1V, rows, nothing)[:, 0].tolist(), strict=True):
            row.start(first_id)
        self._score(rows, logits_B1V, [1] * len(rows))

    def _take_in(
        self,
        first_slot: int,
        rows: Sequence[Row],
        counts: list[int],
        features_TLD: Tensor,
        final_TD: Tensor,
    ) -> None:
        """Hand what the target said of the next prompt tokens to whoever reads it."""
        features, final = features_TLD.split(counts), final_TD.split(counts)
        self._keep(rows, features, final, counts)
        followers = [
            torch.tensor(row.followers(row.prefilled, row.prefilled + count), device=final_TD.device)
            for row, count in zip(rows, counts, strict=True)
        ]
        for row, count in zip(rows, counts, strict=True):
            row.prefilled += count
        if self._session is not None:
            padded = (
                pad_sequence(list(of_rows), batch_first=True) for of_rows in (features, final, followers)
            )
            self._observe(first_slot, rows, counts, *padded)

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
            self._observe(0, self.rows, delivered, features_BALD, final_BAD, committed_BA, later=later)
        return sum(delivered)

    def release(self) -> list[Row]:
        """Remove finished rows, free their slots and return them."""
        slots = [slot for slot, row in enumerate(self.rows) if row.finish_reason is not None]
        if slots:
            self._settle()
        # From the back, so that the last row, which fills the gap, is one that stays.
        return [self._vacate(slot) for slot in reversed(slots)]

    def drop(self, request_id: str) -> None:
        """Remove the row of a request, if it has a slot."""
        for slot, row in enumerate([*self.rows, *self.entering]):
            if row.request.request_id == request_id:
                self._settle()
                self._vacate(slot)
                return

    def _vacate(self, slot: int) -> Row:
        """Take the row out of a slot. The last decoding row moves there, and the last entering one behind
        those."""
        row = [*self.rows, *self.entering][slot]
        if slot < len(self.rows):
            self._move(len(self.rows) - 1, slot)
            self.rows[slot] = self.rows[-1]
            self.rows.pop()
            if self.entering:
                self._move(len(self.rows) + len(self.entering), len(self.rows))
                self.entering.insert(0, self.entering.pop())
        else:
            self._move(len(self.rows) + len(self.entering) - 1, slot)
            self.entering[slot - len(self.rows)] = self.entering[-1]
            self.entering.pop()
        last = len(self.rows) + len(self.entering)
        self._cache.reset(last)
        if self._session is not None:
            self._session.reset(last)
        return row

    def _move(self, source: int, destination: int) -> None:
        """Bring what is held of a slot to another one."""
        if source == destination:
            return
        self._cache.move(source, destination)
        if self._session is not None:
            self._session.move(source, destination)

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
        if self._tree is not None:
            return TreeDraft.within(self._session.draft_tree(rows, depth, self._tree), limits)
        samplings = [row.sampling for row in self.rows]
        if not self._drawn or all(sampling.greedy for sampling in samplings):
            return ChainDraft.within(self._session.draft(rows, depth), limits)
        uniforms = [row.uniforms(depth, "draft") for row in self.rows]
        uniforms_BK = torch.tensor(uniforms, dtype=torch.float64, device=self._decoder.device)
        return DrawnChain.up_to(self._session.draw(rows, depth, samplings, uniforms_BK), limits)

    def _verify(self, draft: ChainDraft | TreeDraft) -> Verified:
        anchors_B1 = torch.tensor([[row.anchor] for row in self.rows], device=self._decoder.device)
        ids_BP = torch.cat([anchors_B1, draft.ids_BN.clamp(min=0)], dim=1)
        features_BPLD, final_BPD = self._decoder.step(
            ids_BP, self._cache, self._taps.layers, draft.ancestry_BPP
        )
        logits_BPV = self._decoder.logits(final_BPD)
        typical = self._typical if any(row.lossy for row in self.rows) else None
        verdict = judge(logits_BPV, self.rows, draft, typical)
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
        first_slot: int,
        rows: Sequence[Row],
        counts: Sequence[int],
        features_BQLD: Tensor,
        final_BQD: Tensor,
        next_ids_BQ: Tensor,
        *,
        later: bool = False,
    ) -> None:
        """Tell the drafter what was committed in the rows from `first_slot` on that still run."""
        if self._observer is None:
            return
        running = [place for place, row in enumerate(rows) if row.finish_reason is None]
        if not running:
            return
        if len(running) < len(counts):
            features_BQLD, final_BQD, next_ids_BQ = (
                rows[running] for rows in (features_BQLD, final_BQD, next_ids_BQ)
            )
        device = self._decoder.device
        committed = Committed(
            rows_B=torch.tensor([first_slot + place for place in running], device=device),
            features_BQLD=features_BQLD[:, :, self._taps.drafter],
            final_BQD=final_BQD,
            next_ids_BQ=next_ids_BQ,
            counts_B=torch.tensor([counts[place] for place in running], device=device),
        )
        if later:
            self._observer.hold(committed)
        else:
            self._observer.tell(committed)
