"""A small dataset on disk, for every room that reads one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from eagleray.corpus.manifest import ContentKey, Manifest, write_manifest
from eagleray.corpus.prompt import Reject
from eagleray.corpus.sample import Sample
from eagleray.corpus.shards import write_shard
from eagleray.corpus.storage import LocalFolder
from eagleray.speculation.config import GREEDY

KEY = ContentKey(
    encoder_version=1,
    prompts_hash="p",
    target_hash="t",
    tokenizer_hash="k",
    template_hash="c",
    template_arguments={},
    answers="regenerate",
    supervised_turns="all",
    supervised_thinking=True,
    engine="native",
    dtype="float32",
    sampling=GREEDY,
    samples_per_prompt=1,
    by_category={},
    max_new_tokens=8,
    rows_per_shard=2,
    window_prompts=1024,
)


def make_sample(name: str, prompt: int = 3, answer: int = 2, **changes: Any) -> Sample:
    """A sample whose ids count up from 0 and whose answer is supervised."""
    return Sample(
        **{
            "sample_id": name,
            "input_ids": tuple(range(prompt + answer)),
            "supervised": ((prompt, prompt + answer),),
            "prompt_tokens": prompt,
            "answer_tokens": answer,
            "finish_reason": "stop",
            "answer_origin": "target",
            "category": "code",
            "source": "test",
            **changes,
        }
    )


def publish_dataset(
    folder: Path,
    shards: Sequence[Sequence[Sample]],
    rejects: Sequence[Reject] = (),
    planned_shards: int | None = None,
) -> Manifest:
    """Publish shards; the rejects belong to the first one."""
    storage = LocalFolder(folder)
    begun = Manifest(
        key=KEY,
        planned_shards=planned_shards or len(shards),
        planned_rows=sum(map(len, shards)) + len(rejects),
    )
    records = {
        index: write_shard(storage, index, samples, rejects if index == 0 else ())
        for index, samples in enumerate(shards)
    }
    write_manifest(storage, begun.with_shards(records))
    return begun.with_shards(records)


@pytest.fixture
def content_key() -> ContentKey:
    return KEY


@pytest.fixture
def sample() -> Callable[..., Sample]:
    return make_sample


@pytest.fixture
def publish() -> Callable[..., Manifest]:
    return publish_dataset
