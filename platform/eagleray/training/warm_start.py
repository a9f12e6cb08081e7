"""Beginning from the weights of an earlier drafter: are they what they are said to be, and what comes next.

Weights under wrong names, or for another order of layers, load as noise and train as from nothing, only
slower. The first loss tells: that of a drafter that knows nothing is the logarithm of its vocabulary.
"""

import logging
import math
from dataclasses import dataclass

from safetensors.torch import load_file

from eagleray.drafters.base import TrainableDrafter
from eagleray.drafters.folder import WEIGHTS, read_profile
from eagleray.errors import ConfigError
from eagleray.training.config import WarmStartConfig

TRAINING_LOSS = "training_loss"
"""Where a drafter's profile keeps the loss that it had at the end of its training."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """What the first loss should be, and what it is for random weights."""

    origin: str
    """Where the weights are from."""
    expected_loss: float
    """Loss that was saved with the weights, in nats per unit of weight."""
    random_loss: float
    """Logarithm of the number of ids that can be drafted."""


def load_warm_start(drafter: TrainableDrafter, start: WarmStartConfig, vocab_size: int) -> WarmStart:
    """Put the weights of an exported drafter, and its draft vocabulary, into a fresh one.

    Args:
        vocab_size: Of the target.

    Raises:
        ArtifactError: They are not those of a drafter that this one can go on from.
        ConfigError: Nobody knows the loss that they should have.
    """
    profile = read_profile(start.drafter)
    expected = start.expected_loss or profile.get(TRAINING_LOSS)
    if expected is None:
        raise ConfigError(
            f"The profile of {start.drafter} does not say what loss its weights had, so a warm start from "
            "them could not be told from a random one. Set training.start.expected_loss."
        )
    drafter.warm_start(load_file(start.drafter / WEIGHTS), start.drafter)
    drafted = min(profile["settings"].get("draft_vocab_size") or vocab_size, vocab_size)
    return WarmStart(origin=str(start.drafter), expected_loss=expected, random_loss=math.log(drafted))


def check_first_loss(loss: float, start: WarmStart) -> None:
    """Check the loss of a warm start's first step, before any update.

    Raises:
        ConfigError: It is nearer to that of random weights than to the one saved with the weights.
    """
    if loss > (start.expected_loss + start.random_loss) / 2:
        raise ConfigError(
            f"The first loss of the warm start from {start.origin} is {loss:.3f}; the loss saved with these "
            f"weights is {start.expected_loss:.3f}, and random weights have about {start.random_loss:.3f}. "
            "The weights are not those of a trained drafter of this kind, or this data has nothing in common "
            "with theirs. Choose another training.start.drafter, set training.start.expected_loss to what "
            "they have on this data, or set training.start.how to fresh."
        )
    logger.info("Warm start from %s: first loss %.3f, saved %.3f.", start.origin, loss, start.expected_loss)


def announce_dip(warmup_steps: int) -> None:
    """Say how long a warm start may look worse than what it began from."""
    logger.warning(
        "Warm start: the schedule begins anew, so the loss may rise until step %d, where the rate has its "
        "peak, and needs about as long to come back. Judge the run from step %d on.",
        warmup_steps,
        2 * warmup_steps,
    )
