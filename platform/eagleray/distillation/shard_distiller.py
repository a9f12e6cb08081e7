"""Makes one shard: render, generate, supervise, store. Knows an engine, no cluster.

Supervision comes from what the engine emitted: the answer span starts where the rendered prompt
ends and covers every emitted id, the end-of-turn token included. No text is searched and
nothing is tokenised twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagleray.corpus.chat import RenderedPrompt, render_prompts
from eagleray.corpus.manifest import ContentKey
from eagleray.corpus.prompt import Prompt, Reject
from eagleray.corpus.sample import Sample
from eagleray.corpus.shards import ShardRecord, write_shard
from eagleray.distillation.plan import ShardJob, sample_id
from eagleray.engines.base import Engine, Generation, GenerationRequest
from eagleray.targets.feature_store import FeatureStore


@dataclass(frozen=True, kw_only=True)
class ShardReceipt:
    """What a worker reports once a shard is on disk."""

    index: int
    record: ShardRecord
    rejects: tuple[Reject, ...]
    answer_tokens: int


class ShardDistiller:
    """Turns shard jobs into published shards with one engine."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        key: ContentKey,
        folder: Path,
        max_prompt_tokens: int,
        features: FeatureStore | None = None,
    ):
        self.engine = engine
        self.tokenizer = tokenizer
        self.key = key
        self.folder = folder
        self.max_prompt_tokens = max_prompt_tokens
        self.features = features

    def distil(self, job: ShardJob, on_progress: Callable[[int], None] | None = None) -> ShardReceipt:
        """Answer the prompts of one shard and publish it. A bad prompt becomes a reject, never a failure."""
        rendered, rejects = render_prompts(self.tokenizer, job.prompts)
        fitting = [row for row in rendered if len(row.prompt_ids) <= self.max_prompt_tokens]
        rejects += [self._too_long(row) for row in rendered if row not in fitting]
        run = self.engine.generate(
            [self._request(row) for row in fitting],
            capture_layers=self.features.layers if self.features else None,
            on_progress=on_progress,
        )
        samples = [
            to_sample(row.prompt, generation, self.key)
            for row, generation in zip(fitting, run.generations, strict=True)
        ]
        # Features first: once the manifest names a shard, everything that belongs to it is on disk.
        self._store_features(samples, run.generations)
        return ShardReceipt(
            index=job.index,
            record=write_shard(self.folder, job.index, samples),
            rejects=tuple(rejects),
            answer_tokens=sum(sample.answer_tokens for sample in samples),
        )

    def _request(self, row: RenderedPrompt) -> GenerationRequest:
        return GenerationRequest(
            request_id=row.prompt.prompt_id,
            prompt_ids=row.prompt_ids,
            max_new_tokens=self.key.max_new_tokens,
        )

    def _too_long(self, row: RenderedPrompt) -> Reject:
        return Reject(
            origin=f"{row.prompt.source} [{row.prompt.prompt_id}]",
            reason=f"the prompt has {len(row.prompt_ids)} tokens; at most {self.max_prompt_tokens} fit",
        )

    def _store_features(self, samples: Sequence[Sample], generations: Sequence[Generation]) -> None:
        if self.features is None:
            return
        for sample, generation in zip(samples, generations, strict=True):
            captured = generation.captured
            assert captured is not None, "the engine was asked to capture"
            self.features.put(sample.sample_id, captured.features_TLD, captured.final_TD)


def to_sample(prompt: Prompt, generation: Generation, key: ContentKey) -> Sample:
    """Join a prompt and what the engine emitted for it."""
    start = len(generation.prompt_ids)
    end = start + len(generation.answer_ids)
    return Sample(
        sample_id=sample_id(prompt, key),
        input_ids=generation.prompt_ids + generation.answer_ids,
        supervised=((start, end),),
        prompt_tokens=start,
        answer_tokens=end - start,
        finish_reason=generation.finish_reason,
        category=prompt.category,
        source=prompt.source,
    )
