"""Training a chain: the draft loop unrolled at every supervised position at once.

At draft step k, row p takes the token at p + 1 + k and predicts the one at p + 2 + k, at rotary
position p + k. It is supervised exactly when that predicted token is. It attends to the step-0 keys
of its sample's rows up to p and, of later steps, only to its own: what a live draft after position p
would see. Where several samples share a row, rotary positions begin anew with each.

Rows that never predict a supervised token serve as keys alone; queries, MLP and logits run on the
others, packed. Shapes: B batch rows, T positions, M packed key rows, N packed query rows, A query
slots, K draft steps, D target width, E width that attention reads, U draft vocabulary, H query heads,
G key/value heads, d width of a head.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eagleray.drafters.base import StepTerms, TrainingBatch
from eagleray.drafters.blocks.grouped import group_queries, ungroup_queries
from eagleray.drafters.blocks.layers import Angles
from eagleray.drafters.blocks.packing import Packing
from eagleray.drafters.blocks.query_rows import QueryRows
from eagleray.drafters.blocks.teacher import SlotTerms, Teacher

if TYPE_CHECKING:
    from eagleray.drafters.blocks.chain.drafter import ChainDrafter


def training_step(
    drafter: "ChainDrafter", batch: TrainingBatch, teacher: Teacher, *, steps: int, decay: float
) -> StepTerms:
    """Sum of the teacher's losses over draft steps, step k weighted by `decay` ** k."""
    rows = QueryRows.select(batch, steps)
    terms = SlotTerms.start(drafter.layer.self_attn.q_proj.weight)
    for step, (logits_NU, _) in enumerate(unroll(drafter, batch, rows, steps)):
        label_N = rows.position_N + 2 + step
        judged = teacher.judge(logits_NU, rows.packing.batch_N, label_N, rows.supervised_NK[:, step])
        terms.add(judged, decay**step)
    return terms.total()


def unroll(
    drafter: "ChainDrafter", batch: TrainingBatch, rows: "QueryRows", steps: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits [N, U] of each draft step, fed with the sequence's own tokens, and the state [N, D]
    that the next step takes."""
    attention = UnrolledAttention(drafter, batch, rows)
    state_ND, source_NE = attention.first_inputs()
    for step in range(steps):
        angles = drafter.rotary(rows.place_N + step)
        if step > 0:
            tokens_N = rows.following(batch.ids_BT, 1 + step)
            state_ND, source_NE = drafter.enter(tokens_N, state_ND, rows.place_N + step)
            attention.add_own(source_NE, angles)
        logits_NU, state_ND = drafter.predict(
            drafter.layer.finish(state_ND, attention.attend(source_NE, angles))
        )
        yield logits_NU, state_ND


class UnrolledAttention:
    """Keys and values of all draft steps so far, and attention over them."""

    def __init__(self, drafter: "ChainDrafter", batch: TrainingBatch, rows: QueryRows):
        self.attention = drafter.layer.self_attn
        self.rows = rows
        positions_T = torch.arange(batch.ids_BT.shape[1] - 1, device=batch.ids_BT.device)
        # The last position of a sample has no following token, so it is no row.
        keys = Packing.in_place(positions_T < batch.ends_BT[:, :-1] - 1)
        place_M = keys.slot_N - batch.starts_BT[keys.batch_N, keys.slot_N]
        tokens_M = batch.ids_BT[keys.batch_N, keys.slot_N + 1]
        hidden_MD = drafter.start(
            batch.features_BTLD[keys.batch_N, keys.slot_N], batch.final_BTD[keys.batch_N, keys.slot_N]
        )
        self.residual_MD, self.source_ME = drafter.enter(tokens_M, hidden_MD, place_M)
        keys_MGd, values_MGd = self.attention.keys_values(self.source_ME, drafter.rotary(place_M))
        self.keys_BGTd = keys.pad(keys_MGd).transpose(1, 2)
        self.values_BGTd = keys.pad(values_MGd).transpose(1, 2)
        self.row_index_N = self._index_among(keys, rows)
        last_BA1, first_BA1 = (rows.packing.pad(of_N)[..., None] for of_N in (rows.position_N, rows.start_N))
        self.hidden_BAT = (positions_T > last_BA1) | (positions_T < first_BA1)
        self.own_keys: list[Tensor] = []
        self.own_values: list[Tensor] = []

    def first_inputs(self) -> tuple[Tensor, Tensor]:
        """Residual stream of the query rows at step 0, and what attention is made from."""
        index_N = self.row_index_N
        return self.residual_MD.index_select(0, index_N), self.source_ME.index_select(0, index_N)

    def add_own(self, source_NE: Tensor, angles: Angles) -> None:
        """Append a later step's keys, each visible to its own row alone."""
        keys_NGd, values_NGd = self.attention.keys_values(source_NE, angles)
        self.own_keys.append(self.rows.packing.pad(keys_NGd))
        self.own_values.append(self.rows.packing.pad(values_NGd))

    def attend(self, source_NE: Tensor, angles: Angles) -> Tensor:
        """One softmax over step-0 keys of the sample up to each row, and its own later ones: [N, H * d]."""
        queries_BAHd = self.rows.packing.pad(self.attention.queries(source_NE, angles))
        batch, slots, _, width = queries_BAHd.shape
        groups, context = self.keys_BGTd.shape[1:3]
        grouped = group_queries(queries_BAHd * width**-0.5, groups)
        by_slot = (batch, groups, -1, slots, context)
        scores = (grouped @ self.keys_BGTd.transpose(2, 3)).view(by_slot)
        scores = scores.masked_fill(self.hidden_BAT[:, None, None], float("-inf"))
        split = grouped.view(batch, groups, -1, slots, width)
        own = [(split * key.transpose(1, 2)[:, :, None]).sum(-1, keepdim=True) for key in self.own_keys]
        weights = torch.cat((scores, *own), -1).softmax(-1)
        out = (weights[..., :context].flatten(2, 3) @ self.values_BGTd).view_as(split)
        for step, value in enumerate(self.own_values):
            out = out + weights[..., context + step, None] * value.transpose(1, 2)[:, :, None]
        return self.rows.packing.pack(ungroup_queries(out.flatten(2, 3), slots))

    @staticmethod
    def _index_among(keys: Packing, rows: QueryRows) -> Tensor:
        index_BT = keys.pad(torch.arange(len(keys.batch_N), device=keys.batch_N.device))
        return index_BT[rows.packing.batch_N, rows.position_N]
