"""What the exported folder of any drafter promises."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagleray.drafters.base import TrainableDrafter, TrainingBatch
from eagleray.drafters.catalog import DRAFTERS
from eagleray.drafters.config import DrafterConfig
from eagleray.drafters.folder import CONFIG, PROFILE, WEIGHTS, export_drafter, load_drafter
from eagleray.errors import ArtifactError
from eagleray.targets.decoder import TargetDecoder

MakeDrafter = Callable[..., TrainableDrafter]
BatchFor = Callable[..., TrainingBatch]


def test_every_drafter_with_weights_keeps_the_contract(cases: dict[str, DrafterConfig]) -> None:
    trainable = {spec.name for spec in DRAFTERS if issubclass(spec.load(), TrainableDrafter)}
    assert {config.name for config in cases.values()} == trainable


def test_a_trained_drafter_comes_back_exactly(
    config: DrafterConfig,
    any_target: TargetDecoder,
    make_drafter: MakeDrafter,
    sequence_for: BatchFor,
    observe: Callable[..., None],
    depth_of: Callable[[TrainableDrafter], int],
    tmp_path: Path,
) -> None:
    drafter = make_drafter(config, any_target)
    batch = sequence_for(any_target, drafter, (3, 16), (5, 14))
    optimizer = torch.optim.AdamW([p for p in drafter.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(2):
        drafter(batch).loss_sum.backward()
        optimizer.step()
        optimizer.zero_grad()
    export_drafter(drafter, tmp_path / "drafter", {"trained_length": 16})
    loaded = load_drafter(tmp_path / "drafter", any_target.heads)
    exported, again = drafter.export_tensors(), loaded.export_tensors()
    assert exported.keys() == again.keys()
    assert all(torch.equal(exported[name], again[name]) for name in exported)
    assert loaded.tapped_layers == drafter.tapped_layers
    assert loaded.num_parameters() == drafter.num_parameters()
    with torch.no_grad():
        assert torch.equal(loaded(batch).loss_sum, drafter(batch).loss_sum)
    drafts = []
    for each in (drafter, loaded):
        session = each.open_session(2, 16)
        observe(session, batch, {0: (0, 0, 9), 1: (1, 0, 4)})
        drafts.append(session.draft(2, depth_of(each)))
    assert torch.equal(*drafts)


def test_engines_are_told_the_target_s_shape_and_rotation(
    config: DrafterConfig, any_target: TargetDecoder, make_drafter: MakeDrafter
) -> None:
    told, geometry = make_drafter(config, any_target).export_config(), any_target.geometry
    assert told["vocab_size"] == geometry.vocab_size
    assert told["hidden_size"] == geometry.hidden_size
    if "num_attention_heads" in told:
        assert told["num_attention_heads"] == geometry.num_heads
        assert told["num_key_value_heads"] == geometry.num_kv_heads
        assert told["head_dim"] == geometry.head_dim
        assert told["rope_theta"] == told["rope_parameters"]["rope_theta"] == geometry.rope_theta
        assert told["rope_scaling"] == geometry.rope_scaling
        assert told["rope_parameters"].items() >= (geometry.rope_scaling or {}).items()


def test_the_profile_says_what_the_configuration_leaves_open(drafter: TrainableDrafter) -> None:
    said = drafter.export_profile()
    assert said.keys() >= {
        "algorithm",
        "settings",
        "anchor_convention",
        "slots",
        "trained_slots",
        "target_layer_ids",
        "layer_id_convention",
        "draft_vocabulary",
        "engines",
    }
    assert said["engines"].keys() == {"vllm", "sglang"}
    assert said["target_layer_ids"] == list(drafter.tapped_layers)
    assert json.loads(json.dumps(said)) == said


def test_all_trainable_parameters_are_counted_and_exported(drafter: TrainableDrafter) -> None:
    learned = {name: p for name, p in drafter.named_parameters() if p.requires_grad}
    assert drafter.num_parameters() == sum(p.numel() for p in learned.values()) > 0
    exported = sum(t.numel() for t in drafter.export_tensors().values() if t.is_floating_point())
    assert exported >= drafter.num_parameters()


@pytest.mark.parametrize("damage", ["missing", "unknown", "reshaped"])
def test_any_damaged_tensor_is_refused_by_its_name(
    drafter: TrainableDrafter, target: TargetDecoder, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "drafter"
    export_drafter(drafter, folder, {})
    tensors = load_file(folder / WEIGHTS)
    for name, tensor in tensors.items():
        damaged = dict(tensors)
        del damaged[name]
        if damage == "unknown":
            damaged[f"{name}_"] = tensor
        if damage == "reshaped":
            damaged[name] = tensor[:-1].clone()
        save_file(damaged, folder / WEIGHTS)
        with pytest.raises(ArtifactError, match=re.escape(name)):
            load_drafter(folder, target.heads)


def test_a_folder_holds_three_files_and_replaces_an_older_one_as_a_whole(
    drafter: TrainableDrafter, tmp_path: Path
) -> None:
    export_drafter(drafter, tmp_path / "drafter", {})
    (tmp_path / "drafter" / "stray").touch()
    export_drafter(drafter, tmp_path / "drafter", {})
    assert [path.name for path in tmp_path.iterdir()] == ["drafter"]
    assert {path.name for path in (tmp_path / "drafter").iterdir()} == {CONFIG, WEIGHTS, PROFILE}
