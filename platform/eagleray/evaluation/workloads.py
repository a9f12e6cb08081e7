"""What the drafters were judged on: the held-out prompts by family, and where they come from."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from eagleray.corpus.chat import RenderedPrompt
from eagleray.corpus.families.sources import SOURCES


def group_by_family(prompts: Iterable[RenderedPrompt]) -> dict[str, tuple[RenderedPrompt, ...]]:
    """Split rendered prompts by category, families and prompts in order of appearance."""
    families: dict[str, list[RenderedPrompt]] = {}
    for item in prompts:
        families.setdefault(item.prompt.category, []).append(item)
    return {family: tuple(items) for family, items in families.items()}


def describe_workloads(
    prompts: Mapping[str, Sequence[RenderedPrompt]], training_families: Collection[str] | None
) -> dict[str, dict[str, Any]]:
    """Return the `workloads` section of a report.

    Args:
        training_families: None where nobody knows what the drafters were trained on.
    """
    return {
        family: {
            "prompts": len(items),
            "source": _source(family, items),
            "licence": ", ".join(sorted({item.prompt.licence for item in items})),
            "in_training_families": None if training_families is None else family in training_families,
        }
        for family, items in prompts.items()
    }


def _source(family: str, items: Sequence[RenderedPrompt]) -> str:
    if family in SOURCES:
        return SOURCES[family].origin
    files = {item.prompt.source.rpartition(":")[0] or item.prompt.source for item in items}
    return ", ".join(sorted(files))
