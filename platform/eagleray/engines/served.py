"""What engines that we start as servers have in common: a drafter's folder, an answer with its cycles."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagleray.drafters.folder import read_profile
from eagleray.engines.base import FinishReason
from eagleray.errors import ArtifactError, EngineError
from eagleray.speculation.acceptance import Cycle

MODEL_NAME = "target"
"""Under which a server knows the target."""
NOT_SERVED = "not served"
"""How a profile's entry for an engine begins that cannot run the drafter; the reason follows."""


@dataclass(frozen=True, kw_only=True)
class ServedDrafter:
    """An exported drafter, and how many tokens it drafts per cycle."""

    folder: Path
    depth: int


@dataclass(frozen=True, kw_only=True)
class PromptLookup:
    """Drafting without a drafter: copies of what followed the newest tokens earlier."""

    depth: int
    min_ngram: int = 1
    max_ngram: int = 3


Drafting = ServedDrafter | PromptLookup
"""What an engine may be told to draft with."""

StepCounts = tuple[Sequence[int], Sequence[int]]
"""Of each verification of an answer: draft tokens that it judged, and how many of them it accepted."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One greedy answer of a server."""

    answer_ids: tuple[int, ...]
    """Emitted ids; the stop token, if one was emitted, is the last."""
    finish_reason: FinishReason
    cycles: tuple[Cycle, ...]
    """One per verification, counted as everywhere in EagleRay. Empty without a drafter."""


def why_not_served(profile: Mapping[str, Any], engine: str, algorithms: Collection[str]) -> str | None:
    """Why an engine cannot run the drafter of a profile; None if it can.

    Args:
        engine: Its key in the profile.
        algorithms: Those of ours that it serves.
    """
    told = str(profile.get("engines", {}).get(engine, ""))
    if profile["algorithm"] not in algorithms:
        return f"algorithm {profile['algorithm']!r} is not one of {', '.join(algorithms)}"
    return told if told.startswith(NOT_SERVED) else None


def require_served(drafter: ServedDrafter, engine: str, algorithms: Collection[str]) -> str:
    """The algorithm of a drafter that an engine serves; see `why_not_served`.

    Raises:
        EngineError: The engine cannot run it; the message says why.
        ArtifactError: The folder is not one that this program exported, or the depth is not one to draft to.
    """
    profile = read_profile(drafter.folder)
    if (reason := why_not_served(profile, engine, algorithms)) is not None:
        raise EngineError(
            f"Drafter {drafter.folder} cannot be served by {engine}: {reason}. "
            "Serve it with the native engine, or train it with other settings."
        )
    if drafter.depth < 1:
        raise ArtifactError(f"Draft depth is {drafter.depth}; expected at least 1.")
    return str(profile["algorithm"])
