"""From the prompts section of a recipe to two lists of prompts that share nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from eagleray.corpus.config import FamilySource, JsonlSource, MtBenchSource, PromptsConfig
from eagleray.corpus.families.catalog import family_prompts
from eagleray.corpus.families.sources import SOURCES
from eagleray.corpus.mt_bench import mt_bench_prompts
from eagleray.corpus.prompt import Prompt, Reject
from eagleray.corpus.prompt_files import read_prompts
from eagleray.errors import DataError


@dataclass(frozen=True, kw_only=True)
class PromptSets:
    """The prompts of a recipe."""

    train: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]
    rejects: tuple[Reject, ...]
    """Rows of prompt files that gave no prompt."""


def build_prompts(config: PromptsConfig) -> PromptSets:
    """Draw the prompts of a recipe.

    Held-out prompts are drawn first and template families skip them afterwards, so a longer
    training list never changes what a drafter is judged on.

    Raises:
        DataError: A source is missing or too small, or a training prompt is also held out.
    """
    rejects: list[Reject] = []
    held_out = _draw(config.held_out, set(), rejects)
    held_out_keys = {prompt.content_key: prompt for prompt in held_out}
    train = _draw(config.train, set(held_out_keys), rejects)
    for prompt in train:
        if prompt.content_key in held_out_keys:
            raise DataError(
                f"The prompt {prompt.messages[-1].content[:60]!r} is in training ({prompt.source}) and "
                f"held out ({held_out_keys[prompt.content_key].source}), so it would judge a drafter that "
                "has seen it. Remove it from one of prompts.train and prompts.held_out."
            )
    return PromptSets(train=tuple(train), held_out=tuple(held_out), rejects=tuple(rejects))


def _draw(
    sources: Sequence[FamilySource | MtBenchSource | JsonlSource], reserved: set[str], rejects: list[Reject]
) -> list[Prompt]:
    """Draw each source in turn; a prompt that an earlier source gave is a reject, or skipped by a family."""
    drawn: dict[str, Prompt] = {}
    for source in sources:
        if isinstance(source, FamilySource):
            found: Iterable[Prompt] = _draw_family(source, reserved | drawn.keys())
        elif isinstance(source, MtBenchSource):
            found = mt_bench_prompts(source)
        else:
            prompts, bad_rows = read_prompts(source.path, source.category, SOURCES["jsonl"].licence)
            rejects.extend(bad_rows)
            found = prompts[: source.count]
        for prompt in found:
            first = drawn.setdefault(prompt.content_key, prompt)
            if first is not prompt:
                rejects.append(Reject(origin=prompt.source, reason=f"same prompt as {first.source}"))
    return list(drawn.values())


def _draw_family(source: FamilySource, taken: set[str]) -> list[Prompt]:
    fresh = (prompt for prompt in family_prompts(source.name, source.seed) if prompt.content_key not in taken)
    prompts = list(islice(fresh, source.count))
    if len(prompts) < source.count:
        raise DataError(
            f"Family {source.name!r} can give {len(prompts)} more distinct prompts; {source.count} were "
            "asked for. Lower `count` of this source or add prompts from another one."
        )
    return prompts
