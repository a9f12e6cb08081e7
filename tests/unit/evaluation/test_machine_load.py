"""What a machine did beside, window by window and in the report."""

import subprocess
import sys
import time
from typing import Any, NamedTuple

import pynvml
import pytest

from eagleray.evaluation import machine_load
from eagleray.evaluation.html import ranged, render_html
from eagleray.evaluation.load_summary import summarise_load
from eagleray.evaluation.machine_load import GpuLoad, WindowLoad, measured_load
from eagleray.evaluation.markdown import to_markdown
from eagleray.evaluation.measure import Bench, measure_load, measure_reference, measure_timing
from eagleray.evaluation.records import RECORD, load_windows
from eagleray.evaluation.units import DraftChoice, LoadUnit, ReferenceUnit, TimingUnit
from eagleray.watchdog.sources.nvml import GpuReader
from tests.unit.watchdog.fake_nvml import FakeNvml


def spin(seconds: float) -> None:
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass


def window(cpu: float | None, own: float | None, gpus: tuple[GpuLoad, ...] = ()) -> WindowLoad:
    return WindowLoad(
        wall_s=2.0,
        load_average_before=1.0,
        load_average_after=3.0,
        cpu_ratio=cpu,
        own_cpu_ratio=own,
        gpus=gpus,
    )


class Times(NamedTuple):
    """Of all cores since they started, in seconds."""

    user: float
    idle: float
    iowait: float
    guest: float


def test_own_work_is_told_from_the_work_of_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two cores for ten seconds: eleven seconds of work, two of them a guest's and told twice, five ours.
    everyone = iter((Times(100.0, 500.0, 7.0, 4.0), Times(111.0, 505.0, 9.0, 6.0)))
    own_s, clock = iter((40.0, 45.0)), iter((1000.0, 1010.0))
    monkeypatch.setattr(machine_load.psutil, "cpu_times", lambda: next(everyone))
    monkeypatch.setattr(machine_load.psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(machine_load, "_own_s", lambda: next(own_s))
    monkeypatch.setattr(machine_load.time, "monotonic", lambda: next(clock))
    with measured_load() as window:
        pass
    assert window.load.wall_s == 10.0
    assert window.load.cpu_ratio == pytest.approx(11 / 20)
    assert window.load.own_cpu_ratio == pytest.approx(5 / 20)
    assert window.load.other_cpu_ratio == pytest.approx(6 / 20)


def test_what_this_process_and_its_children_used_counts_as_own() -> None:
    before_s = machine_load._own_s()
    spin(0.2)
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert machine_load._own_s() > before_s
    with measured_load() as window:
        spin(0.7)
    assert window.load.cpu_ratio is not None
    assert window.load.own_cpu_ratio is not None
    assert 0 <= window.load.own_cpu_ratio <= 1
    assert 0 <= window.load.cpu_ratio <= 1


def test_a_window_too_short_for_ticks_tells_no_share() -> None:
    with measured_load() as short:
        pass
    assert (short.load.cpu_ratio, short.load.own_cpu_ratio, short.load.other_cpu_ratio) == (None,) * 3
    assert short.load.load_average_before >= 0


def test_gpus_are_read_before_and_after_and_power_is_that_of_the_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter((100.0, 104.0))
    monkeypatch.setattr(machine_load.time, "monotonic", lambda: next(times))
    nvml = FakeNvml()
    with measured_load(GpuReader(nvml)) as around:
        nvml.energy_mj += 1_600_000
    assert around.load.gpus == (
        GpuLoad(
            gpu="GPU-0",
            utilisation_before_ratio=0.98,
            utilisation_after_ratio=0.98,
            power_w=400.0,
            memory_used_before_bytes=60 << 30,
            memory_used_after_bytes=60 << 30,
            sm_clock_before_mhz=1980,
            sm_clock_after_mhz=1980,
        ),
    )


def test_what_a_gpu_does_not_say_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = pynvml.NVML_ERROR_NOT_SUPPORTED
    nvml = FakeNvml(rates=refused, energy=refused, fields=refused, usage=refused, sm_clock=refused)
    with measured_load(GpuReader(nvml)) as around:
        pass
    (gpu,) = around.load.gpus
    assert (gpu.utilisation_after_ratio, gpu.power_w, gpu.sm_clock_after_mhz) == (None, None, None)
    assert gpu.memory_used_after_bytes == 60 << 30


def test_every_timed_record_says_what_the_machine_did(bench: Bench) -> None:
    draft = DraftChoice(label="good", depth=3)
    records = [
        measure_timing(TimingUnit(family="code", prompt_index=0, drafts=(draft,)), bench),
        measure_load(LoadUnit(concurrency=2, group=0, drafts=(draft,)), bench),
        measure_reference(ReferenceUnit(family="code", prompt_index=0), bench),
    ]
    assert len(load_windows(records)) == 3
    assert load_windows(RECORD.validate_json(record.model_dump_json()) for record in records) == (
        load_windows(records)
    )


def test_strangers_beyond_a_tenth_of_the_cpus_are_named_with_their_share() -> None:
    found = summarise_load([window(0.55, 0.5), window(0.9, 0.5), window(None, None)])
    assert found is not None
    assert found["hint"].startswith("other processes used more than 10% of the CPUs in 1 of 2 windows")
    assert "at most 40%" in found["hint"]
    assert found["other_cpu_ratio"]["high"] == pytest.approx(0.4)
    assert found["load_average_after"] == {"low": 3.0, "median": 3.0, "high": 3.0}


@pytest.mark.parametrize(
    ("others", "expected", "hinted"),
    [(0.09, 0.0, False), (0.11, 0.0, True), (0.55, 0.5, False), (0.65, 0.5, True), (0.9, None, False)],
)
def test_other_measuring_processes_are_no_disturbance(
    others: float, expected: float | None, hinted: bool
) -> None:
    found = summarise_load([window(others, 0.0)], expected_ratio=expected)
    assert found is not None
    assert (found["hint"] is not None) == hinted


def test_without_a_window_nothing_is_said() -> None:
    assert summarise_load([]) is None


def test_the_page_shows_host_and_gpus_and_says_that_the_machine_was_busy(report: dict[str, Any]) -> None:
    assert report["machine_load"]["windows"] > 0
    gpu = GpuLoad(
        gpu="GPU-0",
        utilisation_before_ratio=0.25,
        utilisation_after_ratio=0.75,
        power_w=412.3,
        memory_used_before_bytes=8 << 30,
        memory_used_after_bytes=10 << 30,
        sm_clock_before_mhz=None,
        sm_clock_after_mhz=None,
    )
    busy = {**report, "machine_load": summarise_load([window(0.9, 0.5, (gpu,))])}
    page = render_html(busy)
    for shown in ("412.3 W (412.3 to 412.3)", "9.0 GiB (8.0 to 10.0)", "75.0 %", "40.0 %", "not measured"):
        assert shown in page
    assert "The machine was busy" in page
    assert "- machine: other processes used" in to_markdown(busy)
    calm = {**report, "machine_load": summarise_load([window(0.5, 0.5)])}
    assert "The machine was busy" not in render_html(calm)
    assert "- machine:" not in to_markdown(calm)
    assert "load average" not in render_html({**report, "machine_load": None})


def test_a_range_is_its_middle_between_its_ends() -> None:
    assert ranged({"low": 0.1, "median": 0.25, "high": 1.0}, 100, " %") == "25.0 % (10.0 to 100.0)"
