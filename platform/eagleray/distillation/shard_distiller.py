"""Makes shards: answer, supervise, store, publish. Knows where answers come from, no cluster.

Supervision comes from ids: an answer starts where the rendered request ends and covers every id that
was emitted or given, the end-of-turn token included. No text is searched.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from eagleray.corpus.journal import JournalEntry, entry_name, publish_entry, read_entry
from eagleray.corpus.manifest import ContentKey
from eagleray.corpus.prompt import TOOL, Prompt
from eagleray.corpus.prompt_table import PromptTable
from eagleray.corpus.sample import Sample
from eagleray.corpus.shards import write_shard
from eagleray.corpus.storage import Storage
from eagleray.corpus.supervision_check import check_supervision
from eagleray.distillation.answers import AnsweredPrompt, AnsweredSequence, AnswerSource
from eagleray.distillation.plan import ShardJob, ShardPlan, sample_id
from eagleray.engines.base import CapturedFeatures
from eagleray.settings import fingerprint
from eagleray.targets.feature_store import FeatureStore

CHECKED_SAMPLES = 8
"""Samples of each shard whose masks are checked before it is published."""


class ShardDistiller:
    """Makes the shards of one dataset.

    Args:
        features: Where captured features go; None when none are captured.
        audit: Looks at the samples of a shard, their features stored, before the shard is published.
    """

    def __init__(
        self,
        answers: AnswerSource,
        key: ContentKey,
        storage: Storage,
        features: FeatureStore | None = None,
        audit: Callable[[Iterable[Sample]], None] = lambda samples: None,
    ):
        self.answers = answers
        self.key = key
        self.storage = storage
        self.features = features
        self._audit = audit
        self._dataset = fingerprint(key)

    def publish_missing(
        self, prompts: PromptTable, plan: ShardPlan, shards: Sequence[int]
    ) -> Iterator[JournalEntry]:
        """Publish those of these shards that are not: all of them, unless an earlier worker died at it.

        Yields the entry of every shard, of the published ones first.
        """
        missing = []
        for shard in shards:
            entry = read_entry(self.storage, entry_name(shard))
            if entry is not None and entry.dataset == self._dataset:
                yield entry
            else:
                missing.append(shard)
        yield from self.publish(plan.jobs(prompts, missing))

    def publish(self, jobs: Iterable[ShardJob]) -> Iterator[JournalEntry]:
        """Make shards and publish each as soon as its last prompt is answered.

        A bad prompt becomes a reject, never a failure.

        Raises:
            NumericsError: A mask or a stored feature is not what it must be; its shard is not published.
        """
        for job, answers in self.answers.answer(jobs):
            samples = self._store(answers.answered)
            self._audit(samples)
            record = write_shard(self.storage, job.index, samples, answers.rejects)
            entry = JournalEntry(dataset=self._dataset, index=job.index, shard=record)
            # Last: once the journal names a shard, everything that belongs to it is on disk.
            publish_entry(self.storage, entry)
            yield entry

    def _store(self, answered: Iterable[AnsweredPrompt]) -> list[Sample]:
        """Make samples, check the masks of some, and store their features."""
        samples, checked = [], []
        for prompt, sample, captured in self._samples(answered):
            if self.features is not None and captured is not None:
                self.features.put(
                    sample.sample_id, sample.input_ids, captured.features_TLD, captured.final_TD
                )
            samples.append(sample)
            if not any(message.role == TOOL for message in prompt.messages):
                checked.append(sample)
        check_supervision(self.answers.chat, checked[:CHECKED_SAMPLES])
        return samples

    def _samples(
        self, answered: Iterable[AnsweredPrompt]
    ) -> Iterator[tuple[Prompt, Sample, CapturedFeatures | None]]:
        for one in answered:
            for part, answer in enumerate(one.sequences):
                sample = to_sample(one.prompt, answer, part, self.key)
                yield one.prompt, sample, answer.captured


def to_sample(prompt: Prompt, answer: AnsweredSequence, part: int, key: ContentKey) -> Sample:
    """Join a prompt and a sequence of its answers."""
    sequence = answer.sequence
    return Sample(
        sample_id=sample_id(prompt, key, answer.draw, sequence.last_turn),
        part=part,
        input_ids=sequence.input_ids,
        supervised=sequence.supervised,
        prompt_tokens=sequence.prompt_tokens,
        answer_tokens=sequence.answer_tokens,
        finish_reason=sequence.finish_reason,
        answer_origin=answer.origin,
        category=prompt.category,
        source=prompt.source,
    )
