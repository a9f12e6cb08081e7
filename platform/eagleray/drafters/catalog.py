"""Every drafter that EagleRay knows. Adding one is a folder beside this file and a line in `DRAFTERS`.

Building is lazy: looking a drafter up imports its settings, not its weights. Shapes: V target vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagleray.drafters.config import DrafterConfig
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.drafters.prompt_lookup.config import PromptLookupConfig
from eagleray.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from eagleray.drafters.base import DraftSource, TrainableDrafter
    from eagleray.targets.heads import FrozenHeads


@dataclass(frozen=True)
class DrafterSpec:
    """One drafter: its settings and how to make it."""

    name: str
    config: type[DrafterConfig]
    build: "Callable[[Any, FrozenHeads, Tensor | None], DraftSource]"
    """Fresh, from settings, the target's heads and counts_V of supervised tokens per target id."""
    restore: "Callable[[Any, FrozenHeads, Mapping[str, Tensor], Path], TrainableDrafter] | None"
    """Shaped for the tensors of an export, not yet loaded. None: there is nothing to train or load."""


def _build_eagle3(config: Eagle3Config, heads: "FrozenHeads", counts_V: "Tensor | None") -> "DraftSource":
    from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
    from eagleray.drafters.eagle3.model import Eagle3Drafter

    return Eagle3Drafter(config, heads, DraftVocabulary.choose(config.draft_vocab_size, heads, counts_V))


def _restore_eagle3(
    config: Eagle3Config, heads: "FrozenHeads", tensors: "Mapping[str, Tensor]", origin: Path
) -> "TrainableDrafter":
    from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
    from eagleray.drafters.eagle3.model import Eagle3Drafter

    return Eagle3Drafter(
        config, heads, DraftVocabulary.from_tensors(tensors, heads.geometry.vocab_size, origin)
    )


def _build_dflash(config: DFlashConfig, heads: "FrozenHeads", counts_V: "Tensor | None") -> "DraftSource":
    from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
    from eagleray.drafters.dflash.model import DFlashDrafter

    size = config.draft_vocab_size
    return DFlashDrafter(
        config, heads, None if size is None else DraftVocabulary.choose(size, heads, counts_V)
    )


def _restore_dflash(
    config: DFlashConfig, heads: "FrozenHeads", tensors: "Mapping[str, Tensor]", origin: Path
) -> "TrainableDrafter":
    from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
    from eagleray.drafters.dflash.model import DFlashDrafter

    if config.draft_vocab_size is None:
        return DFlashDrafter(config, heads, None)
    return DFlashDrafter(
        config, heads, DraftVocabulary.from_tensors(tensors, heads.geometry.vocab_size, origin)
    )


def _build_prompt_lookup(
    config: PromptLookupConfig, heads: "FrozenHeads", counts_V: "Tensor | None"
) -> "DraftSource":
    from eagleray.drafters.prompt_lookup.drafter import PromptLookupDrafter

    return PromptLookupDrafter(config)


DRAFTERS = (
    DrafterSpec("eagle3", Eagle3Config, _build_eagle3, _restore_eagle3),
    DrafterSpec("dflash", DFlashConfig, _build_dflash, _restore_dflash),
    DrafterSpec("prompt_lookup", PromptLookupConfig, _build_prompt_lookup, None),
)


def resolve(name: str) -> DrafterSpec:
    """Look a drafter up.

    Raises:
        ConfigError: No such drafter; the message lists those there are.
    """
    for spec in DRAFTERS:
        if spec.name == name:
            return spec
    known = ", ".join(spec.name for spec in DRAFTERS)
    raise ConfigError(
        f"There is no drafter {name!r}; known drafters: {known}. Set drafter.name to one of them."
    )


def build_drafter(
    config: DrafterConfig, heads: "FrozenHeads", counts_V: "Tensor | None" = None
) -> "DraftSource":
    """Make a fresh drafter from its settings.

    Args:
        config: The settings record of a drafter; its `name` chooses which.
        counts_V: How often each target id is supervised; needed when the draft vocabulary is reduced.

    Raises:
        ConfigError: Unknown drafter, or settings that do not fit the target.
    """
    return resolve(config.name).build(config, heads, counts_V)


def build_trainable_drafter(
    config: DrafterConfig, heads: "FrozenHeads", counts_V: "Tensor | None" = None
) -> "TrainableDrafter":
    """Make a fresh drafter that has weights to train; see `build_drafter`.

    Raises:
        ConfigError: The drafter is training-free.
    """
    from eagleray.drafters.base import TrainableDrafter

    drafter = build_drafter(config, heads, counts_V)
    if not isinstance(drafter, TrainableDrafter):
        raise ConfigError(f"Drafter {config.name!r} has nothing to train. List it under `baselines`.")
    return drafter
