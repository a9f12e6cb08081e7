"""Which drafters keep the contract, and small targets of every family for them to keep it with.

A new drafter adds one line to `CASES`. Shapes: B batch rows, T positions, K trained draft slots,
V target vocabulary, D target width.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from eagleray.drafters.base import Committed, DraftSession, TrainableDrafter, TrainingBatch
from eagleray.drafters.catalog import build_trainable_drafter
from eagleray.drafters.config import DrafterConfig
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.dflash2.config import DFlash2Config
from eagleray.drafters.eagle.config import EagleConfig
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.drafters.medusa.config import MedusaConfig
from eagleray.drafters.mtp.config import MTPConfig
from eagleray.targets.decoder import TargetDecoder
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.weights import expected_shapes

CASES: dict[str, DrafterConfig] = {
    "eagle": EagleConfig(feature_noise=0.0),
    "eagle, unrolled, biased, reduced vocabulary": EagleConfig(
        feature_noise=0.0, ttt_steps=3, fc_bias=True, draft_vocab_size=24
    ),
    "eagle3": Eagle3Config(draft_vocab_size=24),
    "eagle3, norm after residual, frozen head": Eagle3Config(
        draft_vocab_size=1000, norm_before_residual=False, train_head=False
    ),
    "eagle3, norm per layer, normed output": Eagle3Config(
        draft_vocab_size=24, feature_norm="per_layer", norm_output=True
    ),
    "eagle3, joint norm": Eagle3Config(draft_vocab_size=24, feature_norm="joint"),
    "dflash": DFlashConfig(block_size=4),
    "dflash, reduced vocabulary, soft targets": DFlashConfig(
        block_size=5, draft_vocab_size=24, soft_targets=True
    ),
    "dflash, diffusion only": DFlashConfig(block_size=4, kv_injection=False, slot_weighting="dpace"),
    "dflash, injection only": DFlashConfig(block_size=4, parallel_block=False),
    "dflash, neither half": DFlashConfig(block_size=4, kv_injection=False, parallel_block=False),
    "dflash2": DFlash2Config(block_size=4, selector_rank=8, selector_top_k=5),
    "dflash, sliding": DFlashConfig(
        block_size=4,
        kv_injection=False,
        layer_types=("sliding_attention", "full_attention"),
        sliding_window=5,
        is_causal=None,
    ),
    "medusa": MedusaConfig(num_heads=3, draft_vocab_size=24),
    "medusa, a matrix for each head, hard labels": MedusaConfig(
        num_heads=2, output="own", soft_targets=False
    ),
    "medusa, the target's head": MedusaConfig(num_blocks=2, output="target"),
    "mtp": MTPConfig(),
    "mtp, reduced vocabulary, hard labels": MTPConfig(draft_vocab_size=24, ttt_steps=2, soft_targets=False),
}
"""What each drafter is tried with: settings small enough to train in a second."""

VOCAB = 40
LLAMA = TargetGeometry(
    model_type="llama",
    num_layers=8,
    hidden_size=32,
    intermediate_size=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=VOCAB,
    rms_norm_eps=1e-5,
    rope_theta=100000.0,
    rope_scaling={
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    max_position_embeddings=256,
    tie_word_embeddings=False,
    hidden_act="silu",
    attention_bias=False,
    bos_token_id=1,
    pad_token_id=2,
    stop_token_ids=(2,),
)
"""Its heads together are wider than the model, its keys are shared, its rotation is scaled."""

TARGETS = {
    "llama": LLAMA,
    "qwen3, tied": replace(LLAMA, model_type="qwen3", rope_scaling=None, tie_word_embeddings=True),
    "mistral": replace(LLAMA, model_type="mistral", head_dim=8, num_kv_heads=1, sliding_window=256),
}


def random_target(geometry: TargetGeometry, dtype: torch.dtype = torch.float32) -> TargetDecoder:
    """A target of random weights whose layers all matter."""
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: torch.randn(shape, generator=generator) * (shape[-1] ** -0.5 if len(shape) == 2 else 0.1)
        for name, shape in expected_shapes(geometry).items()
    }
    norms_around_one = {name: w if w.ndim == 2 else w + 1 for name, w in weights.items()}
    return TargetDecoder(geometry, {name: w.to(dtype) for name, w in norms_around_one.items()})


@pytest.fixture(scope="session")
def llama_geometry() -> TargetGeometry:
    return LLAMA


@pytest.fixture(scope="session")
def bfloat16_target() -> TargetDecoder:
    return random_target(LLAMA, torch.bfloat16)


@pytest.fixture(scope="session")
def targets() -> dict[str, TargetDecoder]:
    return {name: random_target(geometry) for name, geometry in TARGETS.items()}


@pytest.fixture
def target(targets: dict[str, TargetDecoder]) -> TargetDecoder:
    """The target of tests to which its family does not matter; `targets` has the others."""
    return targets["llama"]


@pytest.fixture(params=TARGETS)
def any_target(request: pytest.FixtureRequest, targets: dict[str, TargetDecoder]) -> TargetDecoder:
    return targets[request.param]


@pytest.fixture(params=CASES.values(), ids=CASES)
def config(request: pytest.FixtureRequest) -> DrafterConfig:
    chosen: DrafterConfig = request.param
    return chosen


@pytest.fixture
def cases() -> dict[str, DrafterConfig]:
    return CASES


def build(config: DrafterConfig, target: TargetDecoder, *, shaken: bool = True) -> TrainableDrafter:
    """A drafter; shaken, its weights are large enough that everything it sees moves what it drafts.

    Every second target id is kept first where the draft vocabulary is reduced.
    """
    counts = torch.arange(target.geometry.vocab_size) % 2
    torch.manual_seed(3)
    drafter = build_trainable_drafter(config, target.heads, counts)
    if shaken:
        with torch.no_grad():
            for parameter in drafter.parameters():
                scale = parameter.shape[-1] ** -0.5 if parameter.ndim == 2 else 0.3
                parameter.add_(torch.randn_like(parameter), alpha=scale)
    return drafter


@pytest.fixture
def make_drafter() -> Callable[..., TrainableDrafter]:
    return build


@pytest.fixture
def drafter(config: DrafterConfig, target: TargetDecoder) -> TrainableDrafter:
    return build(config, target)


def make_batch(
    target: TargetDecoder,
    layers: tuple[int, ...],
    *rows: tuple[int, int],
    seed: int = 0,
) -> TrainingBatch:
    """Random sequences of (prompt tokens, all tokens) with the target's features; answers are supervised."""
    generator = torch.Generator().manual_seed(7)
    ids_BT = torch.randint(
        3, target.geometry.vocab_size, (len(rows), max(n for _, n in rows)), generator=generator
    )
    lengths_B = torch.tensor([total for _, total in rows])
    positions_T = torch.arange(ids_BT.shape[1])
    prompts_B = torch.tensor([prompt for prompt, _ in rows])
    features_BTLD, final_BTD = target.capture(ids_BT, lengths_B, layers)
    return TrainingBatch(
        ids_BT=ids_BT,
        lengths_B=lengths_B,
        supervised_BT=(positions_T >= prompts_B[:, None]) & (positions_T < lengths_B[:, None]),
        features_BTLD=features_BTLD,
        final_BTD=final_BTD,
        seed=seed,
    )


@pytest.fixture
def sequence_for() -> Callable[..., TrainingBatch]:
    """Rows for a drafter of any target: (prompt tokens, all tokens) each."""

    def make(target: TargetDecoder, drafter: TrainableDrafter, *rows: tuple[int, int]) -> TrainingBatch:
        return make_batch(target, drafter.tapped_layers, *rows)

    return make


@pytest.fixture
def batch_for(target: TargetDecoder) -> Callable[..., TrainingBatch]:
    """Rows for a drafter of `target`: (prompt tokens, all tokens) each."""

    def make(drafter: TrainableDrafter, *rows: tuple[int, int], seed: int = 0) -> TrainingBatch:
        return make_batch(target, drafter.tapped_layers, *rows, seed=seed)

    return make


def commit(
    session: DraftSession, batch: TrainingBatch, spans: dict[int, tuple[int, int, int]], padding: int = 0
) -> None:
    """Show spans of a batch in one call: session row -> (batch row, start, end), noise in the padding."""
    most = max(end - start for _, start, end in spans.values()) + padding
    _, positions, taps, width = batch.features_BTLD.shape
    features = torch.full((len(spans), most, taps, width), 50.0)
    final = torch.full((len(spans), most, width), 50.0)
    following = torch.full((len(spans), most), 5)
    for place, (source, start, end) in enumerate(spans.values()):
        assert end < positions
        features[place, : end - start] = batch.features_BTLD[source, start:end]
        final[place, : end - start] = batch.final_BTD[source, start:end]
        following[place, : end - start] = batch.ids_BT[source, start + 1 : end + 1]
    session.observe(
        Committed(
            rows_B=torch.tensor(list(spans)),
            features_BQLD=features,
            final_BQD=final,
            next_ids_BQ=following,
            counts_B=torch.tensor([end - start for _, start, end in spans.values()]),
        )
    )


@pytest.fixture
def observe() -> Callable[..., None]:
    return commit


def draft_depth(drafter: TrainableDrafter, most: int = 5) -> int:
    """As deep as this drafter goes, but not deeper than a test wants."""
    return min(drafter.max_depth or most, most)


@pytest.fixture
def depth_of() -> Callable[[TrainableDrafter], int]:
    return draft_depth
