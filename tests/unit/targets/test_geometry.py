import json
from pathlib import Path

import pytest

from eagleray.errors import ArtifactError
from eagleray.targets.geometry import TargetGeometry

BASE = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
}


def read(folder: Path, **changes: object) -> TargetGeometry:
    (folder / "config.json").write_text(json.dumps(BASE | changes))
    return TargetGeometry.read(folder)


def test_head_dim_is_read_and_only_derived_when_absent(tmp_path: Path) -> None:
    assert read(tmp_path).head_dim == 16
    assert read(tmp_path, head_dim=32).head_dim == 32


def test_both_spellings_of_rope_settings_mean_the_same(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0}
    old = read(tmp_path, rope_theta=100000.0, rope_scaling=scaling)
    new = read(tmp_path, rope_parameters={"rope_theta": 100000.0, **scaling})
    assert old == new
    assert old.rope_theta == 100000.0
    assert old.rope_scaling == scaling


def test_default_rope_type_is_no_scaling(tmp_path: Path) -> None:
    geometry = read(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 100000.0})
    assert geometry.rope_scaling is None
    assert geometry.rope_theta == 100000.0


def test_stop_ids_come_from_the_generation_config_first(tmp_path: Path) -> None:
    assert read(tmp_path).stop_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    assert read(tmp_path).stop_token_ids == (2, 7)


def test_unknown_family_and_missing_config_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="'mamba'"):
        read(tmp_path, model_type="mamba")
    with pytest.raises(ArtifactError, match=r"no config\.json"):
        TargetGeometry.read(tmp_path / "nothing")
