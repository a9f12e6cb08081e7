"""A small training job that needs no target: random samples, random features, a two-matrix drafter."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eagleray.corpus.sample import Sample
from eagleray.drafters.base import Committed, DraftSession, StepTerms, TrainableDrafter, TrainingBatch
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.heads import FrozenHeads
from eagleray.training.backends.catalog import open_backend
from eagleray.training.checkpoint import CheckpointFolder
from eagleray.training.config import TrainingConfig
from eagleray.training.loop import TrainingJob
from eagleray.training.rows import TrainingRow, TrainingRows
from eagleray.watchdog.telemetry import Phase

WIDTH, VOCAB = 6, 12


class RepeatSession(DraftSession):
    """Drafts the prediction from the newest position, over and over."""

    def __init__(self, drafter: "NextTokenDrafter", max_rows: int):
        self.drafter = drafter
        self.newest = torch.zeros(max_rows, 2 * WIDTH)

    @torch.inference_mode()
    def observe(self, committed: Committed) -> None:
        last = committed.counts_B - 1
        features = committed.features_BQLD.flatten(2)
        self.newest[committed.rows_B] = features[torch.arange(len(last)), last]

    @torch.inference_mode()
    def draft(self, num_rows: int, depth: int) -> Tensor:
        return self.drafter.logits(self.newest[:num_rows]).argmax(-1)[:, None].expand(-1, depth)

    def reset(self, row: int) -> None:
        self.newest[row] = 0

    def move(self, source: int, destination: int) -> None:
        self.newest[destination] = self.newest[source]


class NextTokenDrafter(TrainableDrafter):
    """Predicts the next supervised token from the features of the position before it."""

    tapped_layers = (0, 1)
    max_depth = None

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.norm = nn.RMSNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)

    def logits(self, features: Tensor) -> Tensor:
        scores: Tensor = self.lm_head(self.norm(self.inner(features)))
        return scores

    def forward(self, batch: TrainingBatch) -> StepTerms:
        logits = self.logits(batch.features_BTLD.flatten(2))
        positions_T = torch.arange(batch.ids_BT.shape[1])
        labels = (batch.supervised_BT & (positions_T > batch.starts_BT))[:, 1:]
        chosen, wanted = logits[:, :-1][labels], batch.ids_BT[:, 1:][labels]
        return StepTerms(
            loss_sum=nn.functional.cross_entropy(chosen, wanted, reduction="sum"),
            weight_sum=torch.tensor(float(len(wanted))),
            correct_K=(chosen.argmax(-1) == wanted).sum()[None],
            counted_K=torch.tensor([len(wanted)]),
        )

    def open_session(self, max_rows: int, max_length: int) -> DraftSession:
        return RepeatSession(self, max_rows)

    def export_config(self) -> dict[str, Any]:
        return {}

    def export_profile(self) -> dict[str, Any]:
        return {}

    def export_tensors(self) -> dict[str, Tensor]:
        return dict(self.state_dict())

    def load_tensors(self, tensors: dict[str, Tensor], origin: Path) -> None:
        self.load_state_dict(tensors)


class RandomFeatures:
    """Features that depend on nothing but the sample."""

    phase: Phase = "data"

    def features(self, rows: Sequence[TrainingRow], device: torch.device) -> tuple[Tensor, Tensor]:
        features_BTLD = torch.full((len(rows), max(row.length for row in rows), 2, WIDTH), 1e3)
        for index, row in enumerate(rows):
            ids = row.sample.input_ids
            generator = torch.Generator().manual_seed(len(ids) * 100 + ids[0])
            features_BTLD[index, : row.length] = torch.randn(row.length, 2, WIDTH, generator=generator)
        return features_BTLD, features_BTLD[:, :, 0]


class ListReporter:
    """Remembers what it was told, and stops when asked to."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.metrics: list[dict[str, float]] = []
        self.saved: list[Path | None] = []
        self._stop_after = stop_after

    def report(self, metrics: dict[str, float]) -> None:
        self.metrics.append(metrics)

    def save(self, checkpoint: Path | None) -> None:
        self.saved.append(checkpoint)

    def should_stop(self) -> bool:
        return self._stop_after is not None and len(self.metrics) + 1 >= self._stop_after


def make_samples(*rows: tuple[int, int]) -> list[Sample]:
    """Samples of (prompt tokens, answer tokens)."""
    generator = torch.Generator().manual_seed(11)
    return [
        Sample(
            sample_id=f"sample-{index}",
            input_ids=tuple(torch.randint(VOCAB, (prompt + answer,), generator=generator).tolist()),
            supervised=((prompt, prompt + answer),),
            prompt_tokens=prompt,
            answer_tokens=answer,
            finish_reason="stop",
            answer_origin="target",
            category="c",
            source="s",
        )
        for index, (prompt, answer) in enumerate(rows)
    ]


SAMPLES = [(2, 1), (3, 9), (2, 5), (4, 2), (2, 7), (5, 3), (1, 8), (2, 2), (3, 4)]


def make_job(
    root: Path, reporter: ListReporter | None = None, held_out: int = 0, **settings: Any
) -> TrainingJob:
    """A job over eight samples (a ninth has no anchor); two per step unless `settings` say otherwise."""
    torch.manual_seed(5)
    drafter = NextTokenDrafter()
    chosen = {"global_batch_size": 2, "micro_batch_size": 2, "workers": 1, "learning_rate": 1e-2, **settings}
    config = TrainingConfig(**chosen)
    return TrainingJob(
        config=config,
        backend=open_backend(drafter, config),
        rows=TrainingRows(make_samples(*SAMPLES), config),
        held_out=make_samples(*[(3, 12)] * held_out),
        source=RandomFeatures(),
        checkpoints=CheckpointFolder(root, config.keep_checkpoints),
        reporter=reporter or ListReporter(),
        fingerprint="f",
    )


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., TrainingJob]:
    """`make_job` in this test's folder."""

    def make(
        folder: str = "run", reporter: ListReporter | None = None, held_out: int = 0, **settings: Any
    ) -> TrainingJob:
        return make_job(tmp_path / folder, reporter, held_out, **settings)

    return make


@pytest.fixture(scope="session")
def job_at() -> Callable[..., TrainingJob]:
    """`make_job` itself, for other processes."""
    return make_job


@pytest.fixture
def reporter() -> type[ListReporter]:
    return ListReporter


@pytest.fixture
def samples() -> Callable[..., list[Sample]]:
    return make_samples


@pytest.fixture
def heads() -> FrozenHeads:
    """Those of a small target."""
    geometry = TargetGeometry.from_config(
        {
            "model_type": "llama",
            "num_hidden_layers": 6,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_attention_heads": 2,
            "vocab_size": 30,
            "max_position_embeddings": 64,
        },
        (2,),
    )
    embedding = torch.randn(30, 16)
    return FrozenHeads(geometry=geometry, embed_VD=embedding, lm_head_VD=embedding)
