"""Makes one shard: render, generate, supervise, store. Knows an engine, no cluster.

Supervision comes from what the engine emitted: the answer span starts where the rendered prompt
ends and covers every emitted id, the end-of-turn token included. No text is searched and
nothing is tokenised twice.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagleray.corpus.chat import RenderError, render_prompt
from eagleray.corpus.manifest import ContentKey, RejectedPrompt
from eagleray.corpus.prompts import Prompt
from eagleray.corpus.sample import Sample
from eagleray.corpus.shards import ShardRecord, write_shard
from eagleray.distillation.plan import ShardJob, sample_id
from eagleray.engines.base import Engine, Generation, GenerationRequest
from eagleray.settings import Settings
from eagleray.targets.feature_store import FeatureStore


class ShardReceipt(Settings):
    """What a worker reports once a shard is on disk."""

    index: int
    record: ShardRecord
    rejected: tuple[RejectedPrompt, ...]
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
        requests, rejected = self._render(job.prompts)
        run = self.engine.generate(
            list(requests.values()),
            capture_layers=self.features.layers if self.features else None,
            on_progress=on_progress,
        )
        samples = [
            to_sample(prompt, generation, self.key)
            for prompt, generation in zip(requests, run.generations, strict=True)
        ]
        if self.features:
            for sample, generation in zip(samples, run.generations, strict=True):
                captured = generation.captured
                assert captured is not None, "the engine was asked to capture"
                self.features.put(sample.sample_id, captured.features_TLD, captured.final_TD)
        # Features first: once the manifest names a shard, everything that belongs to it is on disk.
        record = write_shard(self.folder, job.index, samples)
        return ShardReceipt(
            index=job.index,
            record=record,
            rejected=tuple(rejected),
            answer_tokens=sum(sample.answer_tokens for sample in samples),
        )

    def _render(
        self, prompts: tuple[Prompt, ...]
    ) -> tuple[dict[Prompt, GenerationRequest], list[RejectedPrompt]]:
        requests: dict[Prompt, GenerationRequest] = {}
        rejected = []
        for prompt in prompts:
            try:
                ids = render_prompt(self.tokenizer, prompt.messages)
            except RenderError as error:
                rejected.append(RejectedPrompt(prompt_id=prompt.prompt_id, reason=str(error)))
                continue
            if len(ids) > self.max_prompt_tokens:
                reason = f"prompt has {len(ids)} tokens; at most {self.max_prompt_tokens} fit"
                rejected.append(RejectedPrompt(prompt_id=prompt.prompt_id, reason=reason))
                continue
            requests[prompt] = GenerationRequest(
                request_id=prompt.prompt_id, prompt_ids=ids, max_new_tokens=self.key.max_new_tokens
            )
        return requests, rejected


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
