"""A small target's heads and random sequences that "it emitted", for drafters of every kind."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eagleray.drafters.base import Committed, DraftSession, TrainingBatch
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.heads import FrozenHeads

WIDTH, VOCAB, TAPS = 16, 40, 3


@pytest.fixture
def heads() -> FrozenHeads:
    """Width 16 with four heads of 8, so that head_dim is not width / heads."""
    generator = torch.Generator().manual_seed(1)
    geometry = TargetGeometry(
        model_type="llama",
        num_layers=8,
        hidden_size=WIDTH,
        intermediate_size=24,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=VOCAB,
        rms_norm_eps=1e-5,
        rope_theta=100000.0,
        rope_scaling=None,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        hidden_act="silu",
        attention_bias=False,
        bos_token_id=1,
        pad_token_id=2,
        stop_token_ids=(2,),
    )
    embedding = torch.randn(VOCAB, WIDTH, generator=generator)
    return FrozenHeads(geometry=geometry, embed_VD=embedding, lm_head_VD=embedding)


@pytest.fixture
def make_batch() -> Callable[..., TrainingBatch]:
    """Build a batch from (prompt tokens, all tokens) of each row; the answer is supervised."""

    def make(*rows: tuple[int, int], padding: int = 0, seed: int = 0) -> TrainingBatch:
        generator = torch.Generator().manual_seed(7)
        positions = max(total for _, total in rows) + padding
        ids_BT = torch.randint(3, VOCAB, (len(rows), positions), generator=generator)
        supervised_BT = torch.zeros(len(rows), positions, dtype=torch.bool)
        for row, (prompt, total) in enumerate(rows):
            supervised_BT[row, prompt:total] = True
        return TrainingBatch(
            ids_BT=ids_BT,
            lengths_B=torch.tensor([total for _, total in rows]),
            supervised_BT=supervised_BT,
            features_BTLD=torch.randn(len(rows), positions, TAPS, WIDTH, generator=generator),
            final_BTD=torch.randn(len(rows), positions, WIDTH, generator=generator),
            seed=seed,
        )

    return make


@pytest.fixture
def observe() -> Callable[[DraftSession, TrainingBatch, int, int, int, int], None]:
    """Show positions `start`..`end` of a batch row to a session row."""

    def show(
        session: DraftSession, batch: TrainingBatch, source: int, row: int, start: int, end: int
    ) -> None:
        session.observe(
            Committed(
                rows_B=torch.tensor([row]),
                features_BQLD=batch.features_BTLD[None, source, start:end],
                final_BQD=batch.final_BTD[None, source, start:end],
                next_ids_BQ=batch.ids_BT[None, source, start + 1 : end + 1],
                counts_B=torch.tensor([end - start]),
            )
        )

    return show


@pytest.fixture
def counts() -> Tensor:
    """Counts that keep every second target id and then the low ones."""
    return torch.tensor([10 if token % 2 else 1 for token in range(VOCAB)])
