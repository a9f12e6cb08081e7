"""Damaged, repaired and distilled again, a dataset and its features are byte for byte what they were."""

from pathlib import Path
from typing import Any

from eagleray.cluster.repair import repair_dataset
from eagleray.corpus.chat import ChatTemplate
from eagleray.corpus.manifest import ContentKey, Manifest, open_manifest
from eagleray.corpus.prompt import user_prompt
from eagleray.corpus.prompt_table import write_table
from eagleray.corpus.shards import read_shard
from eagleray.corpus.storage import LocalFolder
from eagleray.distillation.plan import ShardPlan
from eagleray.distillation.shard_distiller import ShardDistiller
from eagleray.distillation.target_answers import TargetAnswers
from eagleray.engines.native.engine import NativeEngine
from eagleray.targets.feature_store import FeatureStore
from eagleray.training.feature_audit import FeatureAudit

PROMPTS = [
    user_prompt(f"Count to {number}.", category="code", source="test", licence="none") for number in range(6)
]


def distil_missing(
    engine: NativeEngine, tokenizer: Any, key: ContentKey, storage: LocalFolder, store: FeatureStore
) -> list[int]:
    """Make what is missing, as the distil job does; returns which shards that were."""
    plan = ShardPlan(rows=len(PROMPTS), rows_per_shard=key.rows_per_shard, window_rows=key.window_prompts)
    missing = open_manifest(storage, _begun(key)).missing()
    answers = TargetAnswers(engine, ChatTemplate(tokenizer), key, 200, 4, store.layers)
    audit = FeatureAudit(store, engine.decoder, 1.0)
    distiller = ShardDistiller(answers, key, storage, store, audit.check)
    table = write_table(storage.path.parent / "prompts.jsonl", PROMPTS)
    # One by one: in other company the last bits of a feature may differ.
    return [entry.index for one in missing for entry in distiller.publish_missing(table, plan, [one])]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def test_only_what_is_damaged_is_made_again_and_equals_what_it_was(
    tiny_engine: NativeEngine, tokenizer: Any, content_key: ContentKey, tmp_path: Path
) -> None:
    storage, store = LocalFolder(tmp_path / "dataset"), FeatureStore(tmp_path / "features", (0, 2))
    assert distil_missing(tiny_engine, tokenizer, content_key, storage, store) == [0, 1, 2]
    manifest = open_manifest(storage, _begun(content_key))
    files = [*storage.path.glob("*.*"), *store.folder.rglob("*.safetensors")]
    before = {path: path.read_bytes() for path in files}
    flip(storage.path / "shard-000001.parquet")
    features_of_last = [store.path(one.sample_id) for one in read_shard(storage, manifest.shards[2]).samples]
    flip(features_of_last[1])
    repair_dataset(storage, content_key, store)
    assert distil_missing(tiny_engine, tokenizer, content_key, storage, store) == [1, 2]
    assert open_manifest(storage, _begun(content_key)).missing() == []
    assert {path: path.read_bytes() for path in files} == before
    assert storage.names("quarantine") == ["quarantine/shard-000001.parquet.1"]


def _begun(key: ContentKey) -> Manifest:
    return Manifest(key=key, planned_shards=3, planned_rows=6)
