"""Makes one shard: answer, supervise, store. Knows where answers come from, no cluster.

Supervision comes from ids: an answer starts where the rendered request ends and covers every id that
was emitted or given, the end-of-turn token included. No text is searched.
"""

from collections.abc import Callable, Iterator

from eagleray.corpus.manifest import ContentKey
from eagleray.corpus.prompt import TOOL, AnswerOrigin, Prompt
from eagleray.corpus.sample import Sample
from eagleray.corpus.shards import ShardRecord, write_shard
from eagleray.corpus.storage import Storage
from eagleray.corpus.supervision import TrainingSequence
from eagleray.corpus.supervision_check import check_supervision
from eagleray.distillation.answers import AnsweredPrompt, AnswerSource
from eagleray.distillation.plan import ShardJob, sample_id
from eagleray.engines.base import CapturedFeatures
from eagleray.targets.feature_store import FeatureStore

CHECKED_SAMPLES = 8
"""Samples of each shard whose masks are checked before it is published."""


class ShardDistiller:
    """Turns shard jobs into shards on disk, which are published once their journal entry is."""

    def __init__(
        self, answers: AnswerSource, key: ContentKey, storage: Storage, features: FeatureStore | None = None
    ):
        self.answers = answers
        self.key = key
        self.storage = storage
        self.features = features

    def distil(self, job: ShardJob, on_progress: Callable[[int], None] | None = None) -> ShardRecord:
        """Answer the prompts of one shard and write it. A bad prompt becomes a reject, never a failure."""
        answers = self.answers.answer(job.prompts, on_progress)
        samples, checked = [], []
        for prompt, sample, captured in self._samples(answers.answered):
            # Features first: once the manifest names a shard, everything that belongs to it is on disk.
            if self.features is not None and captured is not None:
                self.features.put(
                    sample.sample_id, sample.input_ids, captured.features_TLD, captured.final_TD
                )
            samples.append(sample)
            if not any(message.role == TOOL for message in prompt.messages):
                checked.append(sample)
        check_supervision(self.answers.chat, checked[:CHECKED_SAMPLES])
        return write_shard(self.storage, job.index, samples, answers.rejects)

    def _samples(
        self, answered: tuple[AnsweredPrompt, ...]
    ) -> Iterator[tuple[Prompt, Sample, CapturedFeatures | None]]:
        for one in answered:
            for part, (sequence, captured) in enumerate(zip(one.sequences, one.captured, strict=True)):
                sample = to_sample(one.prompt, sequence, part, self.key, self.answers.origin)
                yield one.prompt, sample, captured


def to_sample(
    prompt: Prompt, sequence: TrainingSequence, part: int, key: ContentKey, origin: AnswerOrigin
) -> Sample:
    """Join a prompt and a sequence of its answers."""
    return Sample(
        sample_id=sample_id(prompt, key, sequence.last_turn),
        part=part,
        input_ids=sequence.input_ids,
        supervised=sequence.supervised,
        prompt_tokens=sequence.prompt_tokens,
        answer_tokens=sequence.answer_tokens,
        finish_reason=sequence.finish_reason,
        answer_origin=origin,
        category=prompt.category,
        source=prompt.source,
    )
