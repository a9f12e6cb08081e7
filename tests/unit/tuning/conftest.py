"""A study over a small space, and measurements whose figures are known."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from eagleray.evaluation.config import BootstrapConfig
from eagleray.evaluation.interleaved import GroupTimes, SettingTime
from eagleray.evaluation.regime import Machine, Regime
from eagleray.tuning.config import Choice, Integer, Point, ServingSweep, SpaceConfig, StudyConfig
from eagleray.tuning.outcome import Outcome, Scale, summarise
from eagleray.tuning.space import Space
from eagleray.tuning.storage import open_storage
from eagleray.tuning.study import Study, terms

BLOCKS = SpaceConfig(
    drafters={
        "chain": {"depth": Integer(low=1, high=3)},
        "block": {
            "block_size": Choice(values=(2, 4)),
            "depth": Integer(low=1, high=7, below="block_size"),
        },
    }
)
"""1 plain + 3 chain + 1 and 3 block points = 8."""

SCALE = Scale(plain_tokens_per_s=10.0, latency_bound_ms=150.0)
BOOTSTRAP = BootstrapConfig(resamples=200)


def make_point(drafter: str, **values: Any) -> Point:
    return Point(drafter=drafter, values=values)


def make_groups(
    speedups: Sequence[float], tau: float = 2.0, divergence: str | None = None
) -> tuple[GroupTimes, ...]:
    """Groups of one prompt, 20 tokens each; plain decoding takes 2 s, the setting 2 s / speedup."""
    return tuple(
        GroupTimes(
            prompts=(f"p{index}",),
            plain=SettingTime(tokens=20, cycles=20, draft_s=0.0, verify_s=2.0, host_s=0.0),
            settings=(
                SettingTime(
                    tokens=20,
                    cycles=round(20 / tau),
                    draft_s=0.0,
                    verify_s=2.0 / speedup,
                    host_s=0.0,
                    divergence=divergence,
                ),
            ),
        )
        for index, speedup in enumerate(speedups)
    )


def make_outcome(point: Point, speedups: Sequence[float], **more: Any) -> Outcome:
    return summarise(
        point, make_groups(speedups, **more), regime="r", scale=SCALE, config=BOOTSTRAP, wall_s=1.0
    )


def make_study(folder: Path, space: SpaceConfig = BLOCKS, objectives: Any = ("v",), **config: Any) -> Study:
    """Open or continue the study of a folder; no trial is begun."""
    chosen = Space(space)
    return Study(
        open_storage(None, folder),
        "study",
        chosen,
        StudyConfig(**{"trials": 100, **config}),
        objectives=objectives,
        contract=terms(chosen, objectives),
    )


def make_regime(**changes: Any) -> Regime:
    machine = Machine(
        cpu_model="test", cores=2, threads=1, accelerator="none", torch_version="2", kernels="torch"
    )
    return Regime(
        **{
            "machine": machine,
            "workers": 1,
            "engine": "pretend",
            "engine_version": "0",
            "engine_settings": {"tensor_parallel": 1},
            "dtype": "float32",
            "target_hash": "t",
            "drafter_hashes": {},
            "template_hash": "c",
            "workload_hash": "w",
            "acceptance_concurrency": 1,
            "max_new_tokens": 8,
            "timing_new_tokens": 8,
            **changes,
        }
    )


def make_sweep(**changes: Any) -> ServingSweep:
    return ServingSweep.model_validate(
        {
            "space": BLOCKS.model_dump(),
            "default": {"drafter": "chain", "values": {"depth": 1}},
            "workloads": {"code": ["code"]},
            "study": {"trials": 100, "bootstrap": {"resamples": 200}},
            **changes,
        }
    )


@pytest.fixture
def point() -> Callable[..., Point]:
    return make_point


@pytest.fixture
def groups() -> Callable[..., tuple[GroupTimes, ...]]:
    return make_groups


@pytest.fixture
def outcome() -> Callable[..., Outcome]:
    return make_outcome


@pytest.fixture
def open_study(tmp_path: Path) -> Callable[..., Study]:
    """Opens the study in one folder, as often as it is called: each call is another start of the driver."""
    return lambda *arguments, **more: make_study(tmp_path, *arguments, **more)


@pytest.fixture
def blocks() -> SpaceConfig:
    return BLOCKS


@pytest.fixture
def regime() -> Callable[..., Regime]:
    return make_regime


@pytest.fixture
def sweep() -> Callable[..., ServingSweep]:
    return make_sweep


@pytest.fixture
def scale() -> Scale:
    return SCALE


@pytest.fixture
def bootstrap_config() -> BootstrapConfig:
    return BOOTSTRAP
