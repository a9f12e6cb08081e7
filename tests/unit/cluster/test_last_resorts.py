"""Other layers that see hangs come after the watchdog, under the names that Ray and torch read."""

from pathlib import Path

import pytest
import torch
from ray.train import NCCLHangError
from ray.train.v2._internal import constants

from eagleray.cluster.attempts import who_saw_what
from eagleray.cluster.last_resorts import (
    driver_environment,
    exchange_timeout_s,
    last_resort_s,
    set_where_unset,
    worker_environment,
)
from eagleray.watchdog.config import DetectorConfig, WatchdogConfig
from eagleray.watchdog.verdicts import Verdict

CONFIG = WatchdogConfig()


def test_exchanges_outlast_every_pause_that_the_watchdog_excuses() -> None:
    assert last_resort_s(DetectorConfig()) == 7200 + 300
    assert last_resort_s(DetectorConfig(ceiling_s={"init": 60}, end_after_blind_s=1000)) == 1000 + 300
    assert exchange_timeout_s(CONFIG) == 7500
    assert exchange_timeout_s(WatchdogConfig(enabled=False)) == 1800


def test_rays_detector_is_for_nccl_and_ends_what_nobody_else_has_ended() -> None:
    assert driver_environment(CONFIG, nccl=False) == {constants.COLLECTIVE_TIMEOUT_S_ENV_VAR: "7500"}
    assert driver_environment(CONFIG, nccl=True) == {
        constants.COLLECTIVE_TIMEOUT_S_ENV_VAR: "7500",
        constants.ENABLE_NCCL_HANG_DETECTOR_ENV_VAR: "1",
        constants.NCCL_RAS_ACTION_ENV_VAR: constants.NCCL_RAS_ACTION_FAIL,
        constants.NCCL_RAS_CONFIRM_DURATION_S_ENV_VAR: "7500",
    }
    assert driver_environment(WatchdogConfig(enabled=False), nccl=True) == {}


def test_what_a_person_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TRAIN_COLLECTIVE_TIMEOUT_S", "60")
    monkeypatch.delenv("RAY_TRAIN_ENABLE_NCCL_HANG_DETECTOR", raising=False)
    set_where_unset({"RAY_TRAIN_COLLECTIVE_TIMEOUT_S": "7500"})
    assert constants.get_env_vars_to_propagate()["RAY_TRAIN_COLLECTIVE_TIMEOUT_S"] == "60"


def test_cublas_gets_its_workspace_before_a_worker_on_a_gpu_begins(tmp_path: Path) -> None:
    assert worker_environment(None, nccl=True, deterministic=True) == {
        "env_vars": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    }
    assert worker_environment(None, nccl=False, deterministic=True) == {}
    both = worker_environment(tmp_path, nccl=True, deterministic=True)["env_vars"]
    assert {"CUBLAS_WORKSPACE_CONFIG", "TORCH_FR_BUFFER_SIZE"} <= both.keys()
    assert "CUBLAS_WORKSPACE_CONFIG" not in worker_environment(tmp_path, nccl=True)["env_vars"]


def test_the_flight_recorder_is_set_up_under_names_that_torch_knows(tmp_path: Path) -> None:
    assert worker_environment(tmp_path, nccl=False) == {}
    assert worker_environment(None, nccl=True) == {}
    variables = worker_environment(tmp_path / "beats", nccl=True)["env_vars"]
    assert variables["TORCH_FR_DUMP_TEMP_FILE"] == str(tmp_path / "beats.nccl-")
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    content = library.read_bytes()
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"):
        assert name in variables
        assert name.encode() in content


def test_the_log_says_which_layer_saw_what(tmp_path: Path) -> None:
    hang = Verdict(
        kind="collective_hang",
        time_s=1.0,
        culprit=3,
        confidence=0.9,
        ends_attempt=True,
        stalled_s=60.0,
        evidence=(),
    )
    told = who_saw_what(tmp_path, hang, NCCLHangError("1 of 1 communicators\nmore", worker_failures={}))
    assert told == (
        "The watchdog saw collective_hang of rank 3. Ranks that failed said nothing. Ray Train told of its "
        "detector over NCCL, NCCLHangError: Training failed due to worker errors: 1 of 1 communicators more"
    )
