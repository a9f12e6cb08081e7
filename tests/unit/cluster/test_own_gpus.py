"""An actor sees the GPUs that it asked for, and no others."""

import os

import pytest

from eagleray.cluster import own_gpus


@pytest.mark.parametrize(("given", "seen"), [([], ""), ([3], "3")])
def test_an_actor_without_gpus_sees_none(
    monkeypatch: pytest.MonkeyPatch, given: list[int], seen: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(own_gpus.ray, "get_gpu_ids", lambda: given)
    own_gpus.hide_other_gpus()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
