"""The cost model against public measurements (SpecForge's spec_bundle) and sums done by hand."""

import pytest

from eagleray.speculation.costs import (
    CycleCost,
    CyclePoint,
    Hardware,
    SlowLink,
    StepLoad,
    anomaly,
    common_speedup,
    count_bits,
    expected_tokens,
    experts_touched,
    id_bits,
    step_floor_s,
    step_s,
)

MEASURED = {
    "Llama-3.1-8B": (1.141, 0.069, (1.348, 1.487, 1.624)),
    "Llama-3.3-70B": (1.123, 0.045, (1.260, 1.343, 1.440)),
    "Qwen3-235B-A22B": (1.459, 0.055, (1.592, 1.794, 1.810)),
    "Qwen3-30B-A3B": (1.354, 0.104, (1.660, 1.888, 2.077)),
    "Kimi-K2": (1.490, 0.148, (1.928, 2.246, 2.521)),
    "Ling-flash-2.0": (1.405, 0.124, (1.767, 2.048, 2.265)),
}
"""F, rho, and the mean time of a cycle in plain steps at 3, 5 and 7 draft steps."""
H100, H200, B200 = 3.35e12, 4.8e12, 8.0e12


def point(steps: int, tau: float, cycle: float) -> CyclePoint:
    return CyclePoint(draft_steps=steps, acceptance_length=tau, speedup=tau / cycle)


@pytest.mark.parametrize("target", MEASURED)
def test_fixed_and_per_step_costs_come_out_of_measured_speedups(target: str) -> None:
    fixed, per_step, cycles = MEASURED[target]
    # The time of a cycle does not depend on tau.
    points = [
        point(steps, tau, cycle)
        for steps, cycle in zip((3, 5, 7), cycles, strict=True)
        for tau in (2.0, 3.5, 5.1)
    ]
    cost = CycleCost.fit(points)
    assert cost.fixed == pytest.approx(fixed, abs=0.002)
    assert cost.per_step == pytest.approx(per_step, abs=0.001)
    for steps, cycle in zip((3, 5, 7), cycles, strict=True):
        assert cost.speedup(4.0, steps) == pytest.approx(4.0 / cycle, rel=0.05)


@pytest.mark.parametrize(("target", "excess"), [("Llama-3.3-70B", 1.10), ("Kimi-K2", 1.24)])
def test_the_common_formula_promises_more_than_was_measured(target: str, excess: float) -> None:
    fixed, per_step, _ = MEASURED[target]
    measured = CycleCost(fixed=fixed, per_step=per_step).speedup(4.0, 5)
    assert common_speedup(3.0, per_step, 5) == pytest.approx(4.0 / (1 + 5 * per_step))
    assert common_speedup(3.0, per_step, 5) / measured > excess


def test_one_depth_cannot_tell_fixed_costs_from_draft_steps() -> None:
    with pytest.raises(ValueError, match="at least two"):
        CycleCost.fit([point(3, 2.0, 1.3), point(3, 3.0, 1.4)])


def test_expected_tokens_by_hand() -> None:
    assert expected_tokens([]) == 1.0
    assert expected_tokens([0.8, 0.5]) == pytest.approx(1 + 0.8 + 0.4)
    rate, depth = 0.7, 5
    assert expected_tokens([rate] * depth) == pytest.approx((1 - rate ** (depth + 1)) / (1 - rate))


def test_a_speedup_above_tau_is_impossible() -> None:
    assert anomaly(CyclePoint(draft_steps=3, acceptance_length=2.0, speedup=1.9)) is None
    assert "speedup 2.1 is above tau 2" in str(
        anomaly(CyclePoint(draft_steps=3, acceptance_length=2.0, speedup=2.1))
    )
    assert "below 1" in str(anomaly(CyclePoint(draft_steps=3, acceptance_length=0.9, speedup=0.5)))


@pytest.mark.parametrize(
    ("weight_bytes", "bandwidth", "devices", "milliseconds"),
    [
        (72e9, H100, 1, 21.5),
        (72e9, H200, 1, 15.0),
        (72e9, B200, 1, 9.0),
        (72e9, H100, 8, 2.69),
        (140e9, H100, 1, 41.8),
        (140e9, H200, 8, 3.65),
        (16.1e9, H100, 1, 4.81),
    ],
)
def test_the_bandwidth_floor_of_public_sizes(weight_bytes, bandwidth, devices, milliseconds) -> None:
    hardware = Hardware(bandwidth_bytes_per_s=bandwidth, devices=devices)
    floor_s = step_floor_s(StepLoad(weight_bytes=weight_bytes), hardware)
    assert floor_s * 1000 == pytest.approx(milliseconds, rel=0.01)


def test_reductions_add_two_latencies_a_layer_and_vanish_on_one_device() -> None:
    load = StepLoad(weight_bytes=72e9, layers=80, hidden_bytes=16384)
    many = Hardware(
        bandwidth_bytes_per_s=H200, devices=8, all_reduce_s=10e-6, all_reduce_s_per_byte=1e-12, host_s=1e-3
    )
    expected_s = 72e9 / 8 / H200 + 160 * (10e-6 + 16384e-12) + 1e-3
    assert step_s(load, many) == pytest.approx(expected_s)
    one = Hardware(bandwidth_bytes_per_s=H200, all_reduce_s=10e-6)
    assert step_s(load, one) == pytest.approx(72e9 / H200)


def test_a_drafter_loses_its_gain_as_devices_are_added() -> None:
    """Its own passes do not shrink, and every forward pays the same reductions."""

    def speedup(devices: int) -> float:
        hardware = Hardware(bandwidth_bytes_per_s=H100, devices=devices, all_reduce_s=15e-6)
        plain_s = step_s(StepLoad(weight_bytes=64e9, layers=64), hardware)
        draft_s = step_s(StepLoad(weight_bytes=1e9, layers=1), Hardware(bandwidth_bytes_per_s=H100))
        verify = plain_s * 1.05 + 1.5e-3
        return 2.4 / ((verify + 5 * draft_s) / plain_s)

    rates = [speedup(devices) for devices in (1, 2, 4, 8)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 1.4 > rates[-1]


def test_experts_that_a_verification_touches() -> None:
    assert experts_touched(128, 8, 1) == pytest.approx(8)
    assert experts_touched(128, 8, 8) == pytest.approx(128 * (1 - (120 / 128) ** 8))
    assert experts_touched(128, 8, 10_000) == pytest.approx(128)


def test_a_slow_line_by_hand() -> None:
    assert (id_bits(49152), id_bits(2), id_bits(131072)) == (16, 1, 17)
    assert (count_bits(1), count_bits(3), count_bits(4)) == (1, 2, 3)
    line = SlowLink(bits_per_s=50_000, round_trip_s=0.1, overhead_bits=640)
    # 4 ids of 16 bits up, 3 bits and an id down, 640 bits of headers: 723 bits are 14.46 ms.
    rate = line.tokens_per_s(2.5, 4, 49152, draft_s=0.02, verify_s=0.05)
    assert rate == pytest.approx(2.5 / (0.02 + 0.05 + 0.1 + 0.01446))
    plain = line.tokens_per_s(1.0, 0, 49152, draft_s=0.0, verify_s=0.05)
    assert plain == pytest.approx(1.0 / (0.05 + 0.1 + 656 / 50_000))
