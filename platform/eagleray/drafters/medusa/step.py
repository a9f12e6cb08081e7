"""One Medusa training step: every head at every position that predicts a supervised token.

Shapes: N rows that draft, D target width, U draft vocabulary, K draft slots.
"""

from typing import TYPE_CHECKING

from eagleray.drafters.base import StepTerms, TrainingBatch
from eagleray.drafters.blocks.query_rows import QueryRows
from eagleray.drafters.blocks.teacher import HardTeacher, SlotTerms, SoftTeacher

if TYPE_CHECKING:
    from eagleray.drafters.medusa.model import MedusaDrafter


def training_step(drafter: "MedusaDrafter", batch: TrainingBatch) -> StepTerms:
    """Sum of cross-entropies over heads, head k weighted by `head_loss_decay` ** k."""
    config = drafter.config
    rows = QueryRows.select(batch, config.num_heads)
    teacher = (SoftTeacher if config.soft_targets else HardTeacher)(drafter, batch)
    final_ND = drafter.widen(batch.final_BTD[rows.packing.batch_N, rows.position_N])
    terms = SlotTerms.start(final_ND)
    for head in range(config.num_heads):
        judged = teacher.judge(
            drafter.score(head, final_ND),
            rows.packing.batch_N,
            rows.position_N + 2 + head,
            rows.supervised_NK[:, head],
        )
        terms.add(judged, config.head_loss_decay**head)
    return terms.total()
