from pathlib import Path

import pytest

from eagleray.errors import DataError
from eagleray.recipe.stages import begin_stage, forget_stage, reopen_stage, save_stage


def test_a_begun_stage_is_found_again_for_the_same_inputs(tmp_path: Path) -> None:
    record = begin_stage(tmp_path, "train_a", {"lr": 0.1, "layers": (1, 2)})
    save_stage(tmp_path, record.model_copy(update={"complete": True, "wall_s": 3.0}))
    again = begin_stage(tmp_path, "train_a", {"lr": 0.1, "layers": (1, 2)})
    assert again.complete
    assert again.wall_s == 3.0


def test_changed_inputs_are_refused_and_named_with_both_values(tmp_path: Path) -> None:
    begin_stage(tmp_path, "train_a", {"training": {"lr": 0.1, "seed": 0}})
    with pytest.raises(DataError) as caught:
        begin_stage(tmp_path, "train_a", {"training": {"lr": 0.2, "seed": 0}})
    assert "training.lr was 0.1, now 0.2" in str(caught.value)
    assert "seed" not in str(caught.value)
    assert "--redo train_a" in str(caught.value)


def test_a_forgotten_stage_starts_afresh(tmp_path: Path) -> None:
    begin_stage(tmp_path, "s", {"a": 1})
    forget_stage(tmp_path, "s")
    assert not begin_stage(tmp_path, "s", {"a": 2}).complete


def test_a_reopened_stage_is_not_complete_and_still_bound_to_its_inputs(tmp_path: Path) -> None:
    reopen_stage(tmp_path, "s")
    save_stage(tmp_path, begin_stage(tmp_path, "s", {"a": 1}).model_copy(update={"complete": True}))
    reopen_stage(tmp_path, "s")
    assert not begin_stage(tmp_path, "s", {"a": 1}).complete
    with pytest.raises(DataError, match="a was 1, now 2"):
        begin_stage(tmp_path, "s", {"a": 2})
