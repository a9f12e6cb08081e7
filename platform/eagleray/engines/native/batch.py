"""The running batch: one cycle drafts and verifies for every row that decodes.

Plain decoding and drafting are the same cycle; plain is a cycle of zero drafts.
Shapes: B rows, N draft nodes (slots of a chain), P = N + 1 verified positions, A positions of the longest
accepted path, L layers, D target width, V target vocabulary.
"""

from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from eagleray.engines.base import DraftSetting
from eagleray.engines.native.choosing import judge, tell_scores
from eagleray.engines.native.drafts import ChainDraft, DrawnChain, TreeDraft
from eagleray.engines.native.graphs import StepGraphs
from eagleray.engines.native.slots import Slots
from eagleray.engines.native.stopwatch import Stopwatch
from eagleray.speculation.depth import DepthChoice, DepthChooser
from eagleray.speculation.verification import ChainVerdict
from eagleray.targets.decoder import TargetDecoder


class Verified(NamedTuple):
    """What the target made of a draft, along each row's accepted path; A covers the longest."""

    accepted: list[int]
    """Accepted draft tokens of each row."""
    committed_BA: Tensor
    features_BALD: Tensor
    final_BAD: Tensor
    logits_BAV: Tensor


class RunningBatch:
    """Decodes the rows in front.

    Args:
        chooser: Decides how deep each cycle drafts; None always drafts to the setting's depth.
        graphs: Steps that are replayed; None runs every step as it is.
    """

    def __init__(
        self,
        slots: Slots,
        decoder: TargetDecoder,
        draft: DraftSetting | None,
        stopwatch: Stopwatch,
        chooser: DepthChooser | None = None,
        graphs: StepGraphs | None = None,
    ):
        self._slots = slots
        self._decoder = decoder
        self._depth = draft.depth if draft else 0
        self._tree = draft.tree if draft else None
        self._drawn = draft is not None and draft.drawn
        self._typical = draft.typical if draft else None
        self._chooser = chooser
        self._graphs = graphs
        self._step = decoder.step if graphs is None else graphs.step
        self._stopwatch = stopwatch

    @property
    def depth_choice(self) -> DepthChoice | None:
        """How deep cycles of the present rows draft, and why; None where that is not chosen, or not yet."""
        return self._chooser.choice(len(self._slots.rows)) if self._chooser and self._slots.rows else None

    def cycle(self) -> int:
        """Draft and verify once for every row. Returns the tokens delivered."""
        if self._chooser is None:
            return self._cycle(self._depth)
        depth = self._chooser.next_depth(len(self._slots.rows))
        told_s = self._slots.settle() if depth > 0 else 0.0
        # A row at its last token, or one that is not to draft, says nothing of the drafter.
        able = [row for row in self._slots.rows if depth == 0 or row.draftable(depth) > 0]
        recordings = self._recordings
        started_s = perf_counter()
        delivered = self._cycle(depth)
        seconds = perf_counter() - started_s
        # A cycle that records a step says nothing of what cycles cost.
        if able and recordings == self._recordings:
            cycles = [row.newest_cycle for row in able]
            self._chooser.record(len(self._slots.rows), depth, seconds, cycles, told_s=told_s)
        return delivered

    @property
    def _recordings(self) -> int:
        return 0 if self._graphs is None else self._graphs.recordings

    def _cycle(self, depth: int) -> int:
        with self._stopwatch.phase("draft"):
            draft = self._draft(depth)
        with self._stopwatch.phase("verify"):
            accepted, committed_BA, features_BALD, final_BAD, logits_BAV = self._verify(draft)
        delivered, committed = [], committed_BA.tolist()
        for slot, row in enumerate(self._slots.rows):
            kept = min(accepted[slot], draft.levels[slot])
            delivered.append(row.commit(committed[slot][: kept + 1], draft.levels[slot]))
            self._slots.cache.advance(slot, delivered[slot])
        tell_scores(self._slots.rows, logits_BAV, delivered)
        with self._stopwatch.phase("draft"):
            later = self._chooser is not None and depth == 0
            self._slots.tell(
                0, self._slots.rows, delivered, features_BALD, final_BAD, committed_BA, later=later
            )
        return sum(delivered)

    def _draft(self, depth: int) -> ChainDraft | TreeDraft:
        rows = len(self._slots.rows)
        limits = [row.draftable(depth) for row in self._slots.rows]
        if self._slots.session is None or max(limits) == 0:
            return ChainDraft.nothing(rows, self._decoder.device)
        # Always at full depth: what a block drafter proposes for a slot depends on the slots after it, and
        # a row's drafts must not depend on how much room its neighbours have.
        if self._tree is not None:
            return TreeDraft.within(self._slots.session.draft_tree(rows, depth, self._tree), limits)
        samplings = [row.sampling for row in self._slots.rows]
        if not self._drawn or all(sampling.greedy for sampling in samplings):
            return ChainDraft.within(self._slots.session.draft(rows, depth), limits)
        uniforms = [row.uniforms(depth, "draft") for row in self._slots.rows]
        uniforms_BK = torch.tensor(uniforms, dtype=torch.float64, device=self._decoder.device)
        return DrawnChain.up_to(self._slots.session.draw(rows, depth, samplings, uniforms_BK), limits)

    def _verify(self, draft: ChainDraft | TreeDraft) -> Verified:
        anchors_B1 = torch.tensor([[row.anchor] for row in self._slots.rows], device=self._decoder.device)
        ids_BP = torch.cat([anchors_B1, draft.ids_BN.clamp(min=0)], dim=1)
        features_BPLD, final_BPD = self._step(
            ids_BP, self._slots.cache, self._slots.taps.layers, draft.ancestry_BPP
        )
        logits_BPV = self._decoder.logits(final_BPD)
        typical = self._typical if any(row.lossy for row in self._slots.rows) else None
        verdict = judge(logits_BPV, self._slots.rows, draft, typical)
        accepted = verdict.accepted_B.tolist()
        if isinstance(verdict, ChainVerdict):
            return Verified(accepted, verdict.committed_BP, features_BPLD, final_BPD, logits_BPV)
        path_BA = verdict.path_BP[:, : max(accepted) + 1]
        self._slots.cache.compact(path_BA)
        slots_B1 = torch.arange(len(path_BA), device=path_BA.device)[:, None]
        committed_BA = verdict.committed_BP[:, : path_BA.shape[1]]
        along_paths = (tensor[slots_B1, path_BA] for tensor in (features_BPLD, final_BPD, logits_BPV))
        return Verified(accepted, committed_BA, *along_paths)
