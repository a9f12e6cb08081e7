"""How much memory a rank will need, from settings alone.

What is counted: the drafter and what is kept for each parameter, what a step's backward pass needs of its
forward pass, the features of a micro-batch, and the target or the part of it that the rank holds. The
coefficients of activations were read off the tensors that autograd saves; a test holds them to that.
Shapes: D target width, I width of the MLP, Q and G widths of all query and key heads, U draft vocabulary,
T positions.
"""

from dataclasses import dataclass

from eagleray.drafters.blocks.chain.config import ChainConfig
from eagleray.drafters.blocks.masked_block.config import MaskedBlockConfig
from eagleray.drafters.config import DrafterConfig
from eagleray.errors import ConfigError
from eagleray.targets.geometry import TargetGeometry
from eagleray.training.config import TrainingConfig
from eagleray.training.layout import MOST_PADDING

GIB = 2**30
FLOAT = 4
"""Bytes of a float32."""
RESERVE_RATIO = 0.1
"""Of a device's memory: its context, fragments of the allocator, buffers of the exchanges."""
REDUCE_BUCKET = 500_000_000
"""Entries that DeepSpeed exchanges at a time."""


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Bytes of one rank at the peak of a step."""

    parameters: int
    """Weights, in every copy that is alive during a step."""
    gradients: int
    moments: int
    activations: int
    features: int
    target: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(vars(self).values())


def plan_memory(
    drafter: DrafterConfig,
    training: TrainingConfig,
    geometry: TargetGeometry,
    target_bytes_per_parameter: int,
    activation_ratio: float = 1.0,
) -> MemoryPlan:
    """Predict a rank's peak.

    Args:
        activation_ratio: Measured over planned activations, from a step that was run.
    """
    parameters = drafter.num_parameters(geometry)
    weights, gradients, moments = _of_parameters(parameters, training)
    layers = len(drafter.tapped_layers(geometry.num_layers)) + 1
    per_sequence = int(activation_ratio * activations(drafter, training, geometry).bytes)
    positions = training.micro_batch_size * training.max_length
    colocated = training.features == "colocated"
    held = target_parameters(geometry) if colocated else head_parameters(geometry)
    return MemoryPlan(
        parameters=weights,
        gradients=gradients,
        moments=moments,
        activations=training.micro_batch_size * per_sequence,
        # Those that are packed arrive padded and are copied into their rows.
        features=(1 + training.pack * MOST_PADDING) * positions * layers * geometry.hidden_size * FLOAT,
        target=held * target_bytes_per_parameter,
    )


def check_memory(plan: MemoryPlan, capacity_bytes: int, training: TrainingConfig, section: str) -> None:
    """Check that a rank's peak fits.

    Args:
        section: Dotted name of the training settings.

    Raises:
        ConfigError: It does not; proposes what changes memory and nothing that is learned.
    """
    usable = int(capacity_bytes * (1 - RESERVE_RATIO))
    if plan.total <= usable:
        return
    parts = ", ".join(f"{name} {gib(value)}" for name, value in vars(plan).items())
    raise ConfigError(
        f"A rank needs {gib(plan.total)} at its peak ({parts}); its device has {gib(capacity_bytes)}, of "
        f"which {gib(usable)} can be planned with. {_propose(plan, usable, training, section)}"
    )


def _propose(plan: MemoryPlan, usable: int, training: TrainingConfig, section: str) -> str:
    if not training.recompute_activations:
        return f"Set {section}.recompute_activations to true first; then lower {section}.micro_batch_size."
    fixed = plan.total - plan.activations - plan.features
    per_sequence = (plan.activations + plan.features) // training.micro_batch_size
    fitting = (usable - fixed) // per_sequence
    if fitting >= 1:
        return (
            f"Set {section}.micro_batch_size to {fitting} or less: the rest of each worker's share is "
            "accumulated, and the step stays the same."
        )
    if training.features == "colocated" and plan.target > usable // 2:
        return (
            f"The target takes most of it: set {section}.features to streamed, where it has GPUs of its own, "
            "or to stored, or take devices with more memory."
        )
    return (
        f"Not even one sequence fits: set {section}.backend to fsdp, take more workers or devices with more "
        "memory. A shorter max_length would train something else."
    )


def _of_parameters(count: int, training: TrainingConfig) -> tuple[int, int, int]:
    """Bytes of weights, gradients and moments. Moments are counted as AdamW's two; Muon has one."""
    whole, share = count * FLOAT, -(-count // training.workers) * FLOAT
    if training.backend == "ddp":
        buckets = whole if training.workers > 1 else 0
        return whole, whole + buckets, 2 * whole
    if training.backend == "fsdp":
        return share + whole, share + whole, 2 * share
    stage, bucket = training.zero.stage, min(whole, REDUCE_BUCKET * FLOAT)
    on_device = 0 if training.zero.offload else 1
    # Stage 3 gathers a whole copy in a step, and keeps one to draft with.
    weights = (share + 2 * whole if stage == 3 else whole) + on_device * share
    return weights, (whole if stage == 1 else share + bucket), on_device * 2 * share


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Numbers of one row of which every token is supervised."""

    saved: int
    """What backward needs of the forward pass."""
    passing: int
    """The largest tensor that both make on their way, and what is computed a second time."""

    @property
    def bytes(self) -> int:
        """At the peak: a largest tensor has its gradient beside it."""
        return FLOAT * (self.saved + 2 * self.passing)


def activations(drafter: DrafterConfig, training: TrainingConfig, geometry: TargetGeometry) -> Activations:
    """Predict the activations of a row of `training.max_length`."""
    if isinstance(drafter, ChainConfig):
        return _of_chain(drafter, training, geometry)
    if isinstance(drafter, MaskedBlockConfig):
        return _of_blocks(drafter, training, geometry)
    scores = training.max_length * geometry.vocab_size
    return Activations(saved=2 * (drafter.max_depth or 1) * scores, passing=scores)


def _of_chain(drafter: ChainConfig, training: TrainingConfig, geometry: TargetGeometry) -> Activations:
    width, length, steps = geometry.hidden_size, training.max_length, drafter.ttt_steps
    queries, keys = drafter.query_width(geometry), drafter.kv_width(geometry)
    mlp = 4 * length * drafter.inner_width(geometry)
    attention = (drafter.num_heads or geometry.num_heads) * length * length
    scores = length * drafter.drafted_ids(geometry)
    taps = len(drafter.tapped_layers(geometry.num_layers))
    step = length * (10 * width + 2 * queries + 2 * keys) + attention + 2 * scores
    step += 0 if training.recompute_activations else mlp
    return Activations(
        saved=steps * step + length * (taps + 3) * width,
        passing=max(attention, scores) + (mlp if training.recompute_activations else 0),
    )


def _of_blocks(drafter: MaskedBlockConfig, training: TrainingConfig, geometry: TargetGeometry) -> Activations:
    width, length, size = geometry.hidden_size, training.max_length, drafter.block_size
    # Of each sequence that shares a row, so many are anchored.
    rows = (length if training.pack else min(drafter.num_anchors, length)) * size
    queries, keys = drafter.query_width(geometry), drafter.kv_width(geometry)
    attention = (drafter.num_heads or geometry.num_heads) * rows * (length + size)
    per_row = 6 * width + 4 * drafter.inner_width(geometry) + 6 * queries + 4 * keys
    per_row += drafter.extra_row_width(geometry)
    layer = rows * per_row + attention + length * 4 * keys
    scores = rows * (size - 1) // size * drafter.drafted_ids(geometry)
    taps = len(drafter.tapped_layers(geometry.num_layers))
    # Keys and values of the context are made outside the layers, so they are not recomputed.
    inputs = rows * width + length * 2 * keys
    kept = drafter.num_layers * (inputs if training.recompute_activations else layer)
    return Activations(
        saved=kept + drafter.score_copies * scores + length * (taps + 4) * width,
        passing=max(attention, scores) + (layer if training.recompute_activations else 0),
    )


def target_parameters(geometry: TargetGeometry) -> int:
    """Of the whole target."""
    width, head = geometry.hidden_size, geometry.head_dim
    queries, keys = geometry.num_heads * head, geometry.num_kv_heads * head
    layer = 2 * width * queries + 2 * width * keys + 3 * width * geometry.intermediate_size + 2 * width
    return geometry.num_layers * layer + width + head_parameters(geometry)


def head_parameters(geometry: TargetGeometry) -> int:
    """Of the embedding and the output matrix, which every rank holds."""
    return geometry.vocab_size * geometry.hidden_size * (1 if geometry.tie_word_embeddings else 2)


def gib(count: int) -> str:
    """Bytes in words."""
    return f"{count / GIB:.2f} GiB"
