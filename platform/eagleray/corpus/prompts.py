"""From the prompts section of a recipe to prompts to distil, in a file, and prompts to judge by, at hand.

The two share nothing. Training prompts stream from their sources through the index of what came before into
their file: nothing here grows with their number. Held-out prompts are as few as an evaluation can answer.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from eagleray.corpus.config import (
    AnswersFrom,
    BenchmarkSource,
    FamilySource,
    FileSource,
    MtBenchSource,
    PromptsConfig,
    PromptSource,
)
from eagleray.corpus.families.catalog import family_prompts
from eagleray.corpus.families.sources import SOURCES
from eagleray.corpus.inputs.opening import describe_file, expand
from eagleray.corpus.mt_bench import mt_bench_prompts
from eagleray.corpus.packaged import benchmark_prompts
from eagleray.corpus.prompt import Prompt, Reject
from eagleray.corpus.prompt_files import BytesListener, RejectTable, read_prompts
from eagleray.corpus.prompt_table import PromptTable, find_table, save_handle, write_table
from eagleray.corpus.seen import SeenPrompts, open_seen
from eagleray.corpus.storage import LocalFolder
from eagleray.errors import DataError
from eagleray.settings import fingerprint

PROMPTS_VERSION = 1
"""Raise it when the code that draws, reads or writes prompts changes what it gives."""

ReadingListener = Callable[[int, int], None]
"""Told bytes read and bytes in all, of the files that training prompts are read from."""


@dataclass(frozen=True, kw_only=True)
class PromptSets:
    """The prompts of a recipe."""

    train: PromptTable
    held_out: tuple[Prompt, ...]


def build_prompts(
    config: PromptsConfig,
    answers: AnswersFrom,
    train_path: Path,
    rejects_path: Path,
    on_reading: ReadingListener | None = None,
) -> PromptSets:
    """Draw the prompts of a recipe; those to train on only if their file does not hold them already.

    Held-out prompts are drawn first and template families skip them afterwards, so a longer
    training list never changes what a drafter is judged on.

    Args:
        train_path: File for the training prompts.
        rejects_path: File for rows of prompt files that gave no prompt, and prompts dropped as duplicates.

    Raises:
        DataError: A source is missing or too small, or a training prompt is also held out.
    """
    LocalFolder(train_path.parent).sweep()
    held_out_rejects: list[Reject] = []
    with open_seen(train_path.parent) as seen:
        held_out_draw = _Draw(config.duplicates == "keep", seen, held_out_rejects.append)
        held_out = tuple(held_out_draw.prompts(config.held_out, {}))
    made_from = _made_from(config, answers)
    table = find_table(train_path, made_from)
    if table is None:
        with open_seen(train_path.parent) as seen, RejectTable(rejects_path) as rejects:
            for reject in held_out_rejects:
                rejects.add(reject)
            draw = _Draw(config.duplicates == "keep", seen, rejects.add, on_reading)
            table = write_table(train_path, draw.apart_from(held_out, config.train), answers)
        facts = {"rejects": rejects.rows, "duplicates": held_out_draw.duplicates + draw.duplicates}
        table = table.model_copy(update={**facts, "made_from": made_from})
        save_handle(table)
    return PromptSets(train=table, held_out=held_out)


def _made_from(config: PromptsConfig, answers: AnswersFrom) -> str:
    """Fingerprint of all that the prompts of a recipe are made from."""
    sources = (*config.held_out, *config.train)
    files = [file for source in sources if isinstance(source, FileSource) for file in expand(source.path)]
    listed = [dataclasses.astuple(describe_file(file)) for file in files]
    return fingerprint([PROMPTS_VERSION, answers, config.model_dump(mode="json"), listed])


class _Draw:
    """Draws sources in turn and knows every prompt it gave: an equal one is counted, then kept or dropped."""

    def __init__(
        self,
        keep_duplicates: bool,
        seen: SeenPrompts,
        reject: Callable[[Reject], None],
        on_reading: ReadingListener | None = None,
    ):
        self.keep_duplicates = keep_duplicates
        self.duplicates = 0
        self._seen = seen
        self._reject = reject
        self._on_reading = on_reading

    def apart_from(self, held_out: Iterable[Prompt], sources: Sequence[PromptSource]) -> Iterator[Prompt]:
        """Draw every source; families skip what is held out.

        Raises:
            DataError: A prompt of another source is held out.
        """
        by_key = {prompt.content_key: prompt for prompt in held_out}
        for prompt in self.prompts(sources, by_key):
            if (judge := by_key.get(prompt.content_key)) is not None:
                raise DataError(
                    f"The prompt {prompt.messages[-1].content[:60]!r} is in training ({prompt.source}) and "
                    f"held out ({judge.source}), so it would judge a drafter that has seen it. Remove it "
                    "from one of prompts.train and prompts.held_out."
                )
            yield prompt

    def prompts(self, sources: Sequence[PromptSource], reserved: Mapping[str, Prompt]) -> Iterator[Prompt]:
        """Draw every source. Families skip what is reserved or was drawn; other sources are not asked to."""
        total_bytes = sum(_size_bytes(source) for source in sources)
        done_bytes = 0
        for source in sources:
            for prompt in self._from_source(source, reserved, done_bytes, total_bytes):
                if (kept := self._once(prompt)) is not None:
                    yield kept
            done_bytes += _size_bytes(source)

    def _from_source(
        self, source: PromptSource, reserved: Mapping[str, Prompt], done_bytes: int, total_bytes: int
    ) -> Iterable[Prompt]:
        if isinstance(source, FamilySource):
            return self._from_family(source, reserved)
        if isinstance(source, MtBenchSource):
            return mt_bench_prompts(source)
        if isinstance(source, BenchmarkSource):
            return benchmark_prompts(source)

        def tell(read_bytes: int) -> None:
            if self._on_reading is not None:
                self._on_reading(done_bytes + read_bytes, total_bytes)

        return islice(self._from_files(source, tell), source.count)

    def _from_family(self, source: FamilySource, reserved: Mapping[str, Prompt]) -> Iterator[Prompt]:
        fresh = (
            prompt
            for prompt in family_prompts(source.name, source.seed)
            if prompt.content_key not in reserved and prompt not in self._seen
        )
        given = 0
        for prompt in islice(fresh, source.count):
            given += 1
            yield prompt
        if given < source.count:
            raise DataError(
                f"Family {source.name!r} can give {given} more distinct prompts; {source.count} were "
                "asked for. Lower `count` of this source or add prompts from another one."
            )

    def _from_files(self, source: FileSource, tell: BytesListener) -> Iterator[Prompt]:
        for item in read_prompts(source.path, source.category, SOURCES["files"].licence, tell):
            if isinstance(item, Reject):
                self._reject(item)
            else:
                yield item

    def _once(self, prompt: Prompt) -> Prompt | None:
        repeat, first_source = self._seen.enter(prompt)
        if not repeat:
            return prompt
        self.duplicates += 1
        if self.keep_duplicates:
            return dataclasses.replace(prompt, repeat=repeat)
        self._reject(Reject(origin=prompt.source, reason=f"same prompt as {first_source}"))
        return None


def _size_bytes(source: PromptSource) -> int:
    """Bytes that reading a source takes in; 0 for those that are not files."""
    if not isinstance(source, FileSource):
        return 0
    return sum(describe_file(path).size_bytes for path in expand(source.path))
