"""From prompts to shard jobs: a fixed partition, so that a shard is the same whenever it is made."""

from collections.abc import Sequence
from dataclasses import dataclass

from eagleray.corpus.config import AnswersFrom
from eagleray.corpus.manifest import ContentKey
from eagleray.corpus.prompt import Prompt
from eagleray.settings import fingerprint

ENCODER_VERSION = 2
"""Part of the content key; raise it when the code that turns prompts into samples changes what it writes."""


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """The prompts of one shard."""

    index: int
    prompts: tuple[Prompt, ...]


def plan_shards(prompts: Sequence[Prompt], rows_per_shard: int) -> list[ShardJob]:
    """Cut prompts into consecutive shard jobs; the last one may be smaller."""
    return [
        ShardJob(index=index, prompts=tuple(prompts[start : start + rows_per_shard]))
        for index, start in enumerate(range(0, len(prompts), rows_per_shard))
    ]


def content_id(prompt: Prompt, answers: AnswersFrom) -> str:
    """Hash of what a prompt contributes to a dataset: with kept answers, the answers too."""
    return prompt.conversation_id if answers == "keep" else prompt.prompt_id


def prompts_hash(prompts: Sequence[Prompt], answers: AnswersFrom) -> str:
    """Hash of what prompts contribute, and of their order."""
    return fingerprint([[content_id(prompt, answers), prompt.category] for prompt in prompts])


def sample_id(prompt: Prompt, key: ContentKey, last_turn: int) -> str:
    """Stable id of a sample: hash of prompt, target, template and sampling, and the turn it ends with."""
    return fingerprint(
        [
            content_id(prompt, key.answers),
            last_turn,
            key.target_hash,
            key.template_hash,
            key.dtype,
            key.sampling,
            key.max_new_tokens,
            key.answers,
        ]
    )
