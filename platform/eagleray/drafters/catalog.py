"""Every drafter that EagleRay knows. Adding one is a folder beside this file and a line in `DRAFTERS`.

Looking a drafter up imports its settings, not its code, so that a recipe is checked without torch.
Shapes: V target vocabulary.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagleray.drafters.config import DrafterConfig
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.dflash2.config import DFlash2Config
from eagleray.drafters.eagle.config import EagleConfig
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.drafters.medusa.config import MedusaConfig
from eagleray.drafters.mtp.config import MTPConfig
from eagleray.drafters.prompt_lookup.config import PromptLookupConfig
from eagleray.errors import ArtifactError, ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from eagleray.drafters.base import DraftSource, TrainableDrafter
    from eagleray.targets.heads import FrozenHeads


@dataclass(frozen=True)
class DrafterSpec:
    """One drafter: its settings, and where its class is.

    The class has `fresh(config, heads, counts_V)`; one with weights also has
    `restored(config, heads, tensors, origin)`, which makes it in the shape of an export.
    """

    config: type[DrafterConfig]
    module: str
    drafter: str

    @property
    def name(self) -> str:
        """What settings and exported folders call it."""
        return str(self.config.model_fields["name"].default)

    def load(self) -> Any:
        """Import the class."""
        return getattr(importlib.import_module(self.module), self.drafter)


DRAFTERS = (
    DrafterSpec(EagleConfig, "eagleray.drafters.eagle.model", "EagleDrafter"),
    DrafterSpec(Eagle3Config, "eagleray.drafters.eagle3.model", "Eagle3Drafter"),
    DrafterSpec(DFlashConfig, "eagleray.drafters.dflash.model", "DFlashDrafter"),
    DrafterSpec(DFlash2Config, "eagleray.drafters.dflash2.model", "DFlash2Drafter"),
    DrafterSpec(MedusaConfig, "eagleray.drafters.medusa.model", "MedusaDrafter"),
    DrafterSpec(MTPConfig, "eagleray.drafters.mtp.model", "MTPDrafter"),
    DrafterSpec(PromptLookupConfig, "eagleray.drafters.prompt_lookup.drafter", "PromptLookupDrafter"),
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
    drafter: DraftSource = resolve(config.name).load().fresh(config, heads, counts_V)
    return drafter


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


def restore_drafter(
    config: DrafterConfig, heads: "FrozenHeads", tensors: "Mapping[str, Tensor]", origin: Path
) -> "TrainableDrafter":
    """Make a drafter in the shape of an export's tensors, which are not loaded yet.

    Args:
        origin: Folder of the export, for messages.

    Raises:
        ArtifactError: The drafter has no weights, or the tensors do not say what it drafts over.
    """
    from eagleray.drafters.base import TrainableDrafter

    kind = resolve(config.name).load()
    if not issubclass(kind, TrainableDrafter):
        raise ArtifactError(
            f"Drafter {origin} is of algorithm {config.name!r}, which has no weights to load."
        )
    drafter: TrainableDrafter = kind.restored(config, heads, tensors, origin)
    return drafter
