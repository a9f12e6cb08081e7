"""From the prompts section of a recipe to two lists of prompts that share nothing."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from eagleray.corpus.config import FamilySource, FileSource, MtBenchSource, PromptsConfig
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
    """Rows of prompt files that gave no prompt, and prompts dropped as duplicates."""
    duplicates: int
    """Prompts that came before in their list, dropped or kept."""


def build_prompts(config: PromptsConfig) -> PromptSets:
    """Draw the prompts of a recipe.

    Held-out prompts are drawn first and template families skip them afterwards, so a longer
    training list never changes what a drafter is judged on.

    Raises:
        DataError: A source is missing or too small, or a training prompt is also held out.
    """
    held_out_draw, train_draw = _Draw(config.duplicates == "keep"), _Draw(config.duplicates == "keep")
    held_out = held_out_draw.prompts(config.held_out, set())
    held_out_keys = {prompt.content_key: prompt for prompt in held_out}
    train = train_draw.prompts(config.train, set(held_out_keys))
    for prompt in train:
        if prompt.content_key in held_out_keys:
            raise DataError(
                f"The prompt {prompt.messages[-1].content[:60]!r} is in training ({prompt.source}) and "
                f"held out ({held_out_keys[prompt.content_key].source}), so it would judge a drafter that "
                "has seen it. Remove it from one of prompts.train and prompts.held_out."
            )
    return PromptSets(
        train=tuple(train),
        held_out=tuple(held_out),
        rejects=(*held_out_draw.rejects, *train_draw.rejects),
        duplicates=held_out_draw.duplicates + train_draw.duplicates,
    )


class _Draw:
    """Draws sources in turn and knows every prompt it gave: an equal one is counted, then kept or dropped."""

    def __init__(self, keep_duplicates: bool):
        self.keep_duplicates = keep_duplicates
        self.rejects: list[Reject] = []
        self.duplicates = 0
        self._first_source: dict[str, str] = {}
        self._repeats: Counter[str] = Counter()

    def prompts(
        self, sources: Sequence[FamilySource | MtBenchSource | FileSource], reserved: set[str]
    ) -> list[Prompt]:
        """Draw every source. Families skip what is reserved or was drawn; other sources are not asked to."""
        return [prompt for source in sources for prompt in self._from_source(source, reserved)]

    def _from_source(
        self, source: FamilySource | MtBenchSource | FileSource, reserved: set[str]
    ) -> Iterator[Prompt]:
        if isinstance(source, FamilySource):
            found: Iterable[Prompt] = _draw_family(source, reserved | self._first_source.keys())
        elif isinstance(source, MtBenchSource):
            found = mt_bench_prompts(source)
        else:
            found = islice(self._from_files(source), source.count)
        for prompt in found:
            if (kept := self._once(prompt)) is not None:
                yield kept

    def _from_files(self, source: FileSource) -> Iterator[Prompt]:
        for item in read_prompts(source.path, source.category, SOURCES["files"].licence):
            if isinstance(item, Reject):
                self.rejects.append(item)
            else:
                yield item

    def _once(self, prompt: Prompt) -> Prompt | None:
        key = prompt.content_key
        first_source = self._first_source.setdefault(key, prompt.source)
        self._repeats[key] += 1
        repeat = self._repeats[key] - 1
        if not repeat:
            return prompt
        self.duplicates += 1
        if self.keep_duplicates:
            return dataclasses.replace(prompt, repeat=repeat)
        self.rejects.append(Reject(origin=prompt.source, reason=f"same prompt as {first_source}"))
        return None


def _draw_family(source: FamilySource, taken: set[str]) -> list[Prompt]:
    fresh = (prompt for prompt in family_prompts(source.name, source.seed) if prompt.content_key not in taken)
    prompts = list(islice(fresh, source.count))
    if len(prompts) < source.count:
        raise DataError(
            f"Family {source.name!r} can give {len(prompts)} more distinct prompts; {source.count} were "
            "asked for. Lower `count` of this source or add prompts from another one."
        )
    return prompts
