"""Who else may see a hang: Ray's detector over NCCL, and the timeouts of exchanges.

They come after the watchdog on purpose. It names the rank, keeps the evidence and knows which pauses were
announced; they know neither, so they are given more time than the longest pause it excuses, and catch what
it cannot see. Names of the environment are those of Ray 2.60 and torch 2.13.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from eagleray.training.determinism import CUBLAS_ENVIRONMENT
from eagleray.watchdog.config import DetectorConfig, WatchdogConfig
from eagleray.watchdog.snapshots import flight_stem

UNWATCHED_TIMEOUT_S = 1800
"""Ray Train's own default for exchanges, kept where nobody watches."""
MARGIN_S = 300
FLIGHT_RECORDER_ENTRIES = "2000"
"""Exchanges remembered per rank; a step has a few dozen."""


def exchange_timeout_s(config: WatchdogConfig) -> int:
    """Seconds after which an exchange between ranks fails by itself."""
    return last_resort_s(config.detector) if config.enabled else UNWATCHED_TIMEOUT_S


def last_resort_s(detector: DetectorConfig) -> int:
    """Seconds that outlast everything the watchdog waits for."""
    patience_s = max(
        *detector.ceiling_s.values(),
        detector.end_after_blind_s,
        detector.end_after_working_s,
        detector.data_end_after_s,
        detector.first_end_after_s,
        detector.no_step_s,
    )
    return round(patience_s) + MARGIN_S


def driver_environment(config: WatchdogConfig, *, nccl: bool) -> dict[str, str]:
    """What Ray Train reads in the driver; empty where nobody watches."""
    if not config.enabled:
        return {}
    timeout_s = str(last_resort_s(config.detector))
    # Ray's barrier around every report has no timeout of its own.
    environment = {"RAY_TRAIN_COLLECTIVE_TIMEOUT_S": timeout_s}
    if nccl:
        environment |= {
            "RAY_TRAIN_ENABLE_NCCL_HANG_DETECTOR": "1",
            # It warns after a minute whatever is set here; only ending the attempt waits this long.
            "RAY_TRAIN_NCCL_RAS_ACTION": "fail",
            "RAY_TRAIN_NCCL_RAS_CONFIRM_DURATION_S": timeout_s,
        }
    return environment


def worker_environment(
    heartbeats: Path | None, *, nccl: bool, deterministic: bool = False
) -> dict[str, dict[str, str]]:
    """The runtime environment of ranks on GPUs: what cuBLAS and NCCL's flight recorder read before their
    first product and exchange."""
    variables: dict[str, str] = {}
    if nccl and deterministic:
        variables |= CUBLAS_ENVIRONMENT
    if nccl and heartbeats is not None:
        variables |= flight_recorder(heartbeats)
    return {"env_vars": variables} if variables else {}


def flight_recorder(heartbeats: Path) -> dict[str, str]:
    """Variables that make NCCL keep its last exchanges."""
    stem = str(flight_stem(heartbeats))
    return {
        # Renamed in torch 2.9; either name may be the one that is read.
        "TORCH_FR_BUFFER_SIZE": FLIGHT_RECORDER_ENTRIES,
        "TORCH_NCCL_TRACE_BUFFER_SIZE": FLIGHT_RECORDER_ENTRIES,
        "TORCH_FR_DUMP_TEMP_FILE": stem,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": stem,
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": stem,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }


def set_where_unset(environment: Mapping[str, str]) -> None:
    """Put variables into this process's environment; what a person has set stays."""
    for name, value in environment.items():
        os.environ.setdefault(name, value)
