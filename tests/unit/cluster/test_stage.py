from pathlib import Path

import pytest

from eagleray.cluster.stage import Stage, StageOutcome, discard_stages, run_stage
from eagleray.corpus.storage import LocalFolder
from eagleray.errors import ConfigError, DataError


def make_stage(name: str, folder: Path, calls: list[str], inputs: dict[str, int], *needs: str) -> Stage:
    def work() -> StageOutcome:
        calls.append(name)
        (folder / name).mkdir(exist_ok=True)
        return StageOutcome(peak_rss_bytes=7, facts={"made_by": name})

    return Stage(
        name=name, inputs=lambda: inputs, work=work, products=(LocalFolder(folder / name),), needs=needs
    )


def test_a_complete_stage_is_not_run_again_and_keeps_its_facts(tmp_path: Path) -> None:
    calls: list[str] = []
    stage = make_stage("distil", tmp_path, calls, {"a": 1})
    first = run_stage(stage, tmp_path / "stages")
    assert run_stage(stage, tmp_path / "stages") == first
    assert calls == ["distil"]
    assert first.facts == {"made_by": "distil"}
    assert first.peak_rss_bytes == 7


def test_a_stage_that_failed_is_run_again(tmp_path: Path) -> None:
    calls: list[str] = []
    stage = make_stage("distil", tmp_path, calls, {"a": 1})
    broken = Stage(name="distil", inputs=stage.inputs, work=lambda: 1 // 0, products=())  # type: ignore[arg-type,return-value]
    with pytest.raises(ZeroDivisionError):
        run_stage(broken, tmp_path / "stages")
    run_stage(stage, tmp_path / "stages")
    assert calls == ["distil"]


def test_changed_inputs_are_refused_until_the_stage_is_redone(tmp_path: Path) -> None:
    calls: list[str] = []
    run_stage(make_stage("distil", tmp_path, calls, {"a": 1}), tmp_path / "stages")
    changed = make_stage("distil", tmp_path, calls, {"a": 2})
    with pytest.raises(DataError, match="a was 1, now 2"):
        run_stage(changed, tmp_path / "stages")
    discard_stages([changed], ["distil"], tmp_path / "stages")
    assert not (tmp_path / "distil").exists()
    run_stage(changed, tmp_path / "stages")
    assert calls == ["distil", "distil"]


def test_redoing_a_stage_redoes_what_needs_it_and_nothing_else(tmp_path: Path) -> None:
    calls: list[str] = []
    stages = [
        make_stage("distil", tmp_path, calls, {}),
        make_stage("train_a", tmp_path, calls, {}, "distil"),
        make_stage("train_b", tmp_path, calls, {}, "distil"),
        make_stage("evaluate", tmp_path, calls, {}, "train_a", "train_b"),
    ]
    for stage in stages:
        run_stage(stage, tmp_path / "stages")
    discard_stages(stages, ["train_a"], tmp_path / "stages")
    for stage in stages:
        run_stage(stage, tmp_path / "stages")
    assert calls == ["distil", "train_a", "train_b", "evaluate", "train_a", "evaluate"]


def test_an_unknown_stage_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has the stages distil"):
        discard_stages([make_stage("distil", tmp_path, [], {})], ["dstil"], tmp_path)
