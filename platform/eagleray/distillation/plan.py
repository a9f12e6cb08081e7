"""From prompts to shard jobs: a fixed partition, so that a shard is the same whenever it is made.

Prompts are taken in windows of consecutive rows. Within a window they are sorted by length before they are
cut into shards: what is generated together is of like length, and nothing is ever held but one window.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from eagleray.corpus.manifest import ContentKey
from eagleray.corpus.prompt import Prompt, content_id
from eagleray.corpus.prompt_table import PromptTable
from eagleray.settings import fingerprint

ENCODER_VERSION = 3
"""Part of the content key; raise it when the code that turns prompts into samples changes what it writes."""

MAX_GROUP = 64
"""Most shards that one worker is given at once."""


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """The prompts of one shard."""

    index: int
    prompts: tuple[Prompt, ...]


@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """Which rows of the prompts go into which shard. Numbers alone: no row is read for it."""

    rows: int
    rows_per_shard: int
    window_rows: int
    """Rows that are sorted together."""

    @property
    def shards_per_window(self) -> int:
        """Shards of every window but the last."""
        return math.ceil(self.window_rows / self.rows_per_shard)

    @property
    def num_shards(self) -> int:
        """Shards of all windows. The last of a window may be smaller."""
        whole, rest = divmod(self.rows, self.window_rows)
        return whole * self.shards_per_window + math.ceil(rest / self.rows_per_shard)

    def window(self, shard: int) -> tuple[int, int]:
        """Rows [start, stop) that the shard's rows are among."""
        start = shard // self.shards_per_window * self.window_rows
        return start, min(start + self.window_rows, self.rows)

    def jobs(self, prompts: PromptTable, shards: Iterable[int]) -> Iterator[ShardJob]:
        """Read the prompts of shards, given in ascending order; one window is in memory at a time."""
        held: tuple[int, int] | None = None
        rows: list[Prompt] = []
        for shard in shards:
            window = self.window(shard)
            if window != held:
                # Longest first, so that what a worker ends with is short.
                rows = sorted(prompts.read(*window), key=prompt_characters, reverse=True)
                held = window
            start = shard % self.shards_per_window * self.rows_per_shard
            yield ShardJob(index=shard, prompts=tuple(rows[start : start + self.rows_per_shard]))


def prompt_characters(prompt: Prompt) -> int:
    """A cheap stand-in for the tokens of a prompt: enough to put like beside like."""
    return sum(len(message.content) for message in prompt.messages + prompt.given)


def group_shards(shards: Sequence[int], workers: int) -> list[tuple[int, ...]]:
    """Cut shards into what a worker takes at once: much at first, single shards at the end.

    A worker keeps its engine full across the shards of a group, and groups that shrink let all workers end
    together (guided self-scheduling, Polychronopoulos and Kuck, 1987).
    """
    groups: list[tuple[int, ...]] = []
    start = 0
    while start < len(shards):
        size = min(MAX_GROUP, math.ceil((len(shards) - start) / (2 * workers)))
        groups.append(tuple(shards[start : start + size]))
        start += size
    return groups


def sample_id(prompt: Prompt, key: ContentKey, draw: int, last_turn: int) -> str:
    """Stable id of a sample: hash of prompt, target, template and sampling, which draw it is of, and the turn
    it ends with."""
    settings = key.answering(prompt.category)
    return fingerprint(
        [
            content_id(prompt, key.answers),
            draw,
            last_turn,
            key.target_hash,
            key.template_hash,
            key.dtype,
            settings.sampling.model_dump(mode="json"),
            settings.max_new_tokens,
            key.answers,
        ]
    )


def request_seed(prompt: Prompt, key: ContentKey, draw: int, turn: int) -> int:
    """Seed of the request for a turn, from 0 to 2**63 - 1: what it drives is the same whenever it is made."""
    return int(sample_id(prompt, key, draw, turn), 16) >> 1
