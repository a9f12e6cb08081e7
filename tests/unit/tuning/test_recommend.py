"""What past sweeps may be asked, and what they refuse to say."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eagleray.errors import DataError
from eagleray.evaluation.config import BootstrapConfig
from eagleray.evaluation.interleaved import GroupTimes
from eagleray.evaluation.regime import Regime
from eagleray.files import write_json_atomically
from eagleray.tuning.config import Point
from eagleray.tuning.outcome import Outcome, Scale, summarise
from eagleray.tuning.recommend import advise, predict, read_memory, require_measured
from eagleray.tuning.result import Confirmation, Result, TrialSummary, to_plain
from jobs.recommend import app

PUBLIC = json.loads((Path(__file__).parent / "fixtures" / "qwq_eagle_tp.json").read_text())
"""Tokens per second of QwQ-32B with and without EAGLE, by tensor-parallel degree."""

MakeRegime = Callable[..., Regime]
MakeGroups = Callable[..., tuple[GroupTimes, ...]]
EAGLE = Point(drafter="eagle", values={"depth": 5})


def replayed(degree: int, regime: MakeRegime, groups: MakeGroups) -> Result:
    """The result of a sweep over the two settings that were published, in one regime."""
    row = PUBLIC["tokens_per_s"][str(degree)]
    where = regime(engine_settings={"tensor_parallel": degree}, engine="sglang")
    scale = Scale(plain_tokens_per_s=row["plain"], latency_bound_ms=1000.0)
    outcomes = [
        summarise(
            point,
            groups([speedup, speedup]),
            regime=where.fingerprint,
            scale=scale,
            config=BootstrapConfig(resamples=20),
            wall_s=0.0,
        )
        for point, speedup in ((Point(drafter="plain"), 1.0), (EAGLE, row["eagle"] / row["plain"]))
    ]
    chosen = max(outcomes, key=lambda outcome: outcome.figures["tokens_per_s"].value)
    return Result(
        study=f"tp{degree}/chat",
        workload="chat",
        regime=where,
        regime_fingerprint=where.fingerprint,
        objectives=("tokens_per_s",),
        scale=scale,
        default=Point(drafter="plain"),
        trials=tuple(
            TrialSummary(number=number, point=one.point, state="complete", outcome=one)
            for number, one in enumerate(outcomes)
        ),
        ties=(),
        front=(chosen.point,),
        confirmation=Confirmation(
            outcomes=tuple(outcomes), chosen=chosen.point, over_default="better", ratio=1.0, low=1.0, high=1.0
        ),
    )


@pytest.fixture
def measured(regime: MakeRegime, groups: MakeGroups) -> dict[int, Result]:
    return {degree: replayed(degree, regime, groups) for degree in (1, 4)}


def test_the_recommendation_of_one_tensor_parallel_degree_is_refused_for_another(
    measured: dict[int, Result],
) -> None:
    """At degree 1 EAGLE is the choice; the same drafter is a loss at degree 4."""
    alone = advise([measured[1]], {"engine_settings.tensor_parallel": 1})
    require_measured(alone)
    assert alone.result.confirmation
    assert alone.result.confirmation.chosen == EAGLE
    eagle_at_4 = next(o for o in measured[4].outcomes if o.point == EAGLE)
    assert eagle_at_4.loss
    asked = advise([measured[1]], {"engine_settings.tensor_parallel": 4})
    assert not asked.measured
    assert asked.predictions == ()
    with pytest.raises(DataError, match=r"eagle depth=5 was chosen.*tensor_parallel is 1, wanted 4"):
        require_measured(asked)


def test_each_regime_has_an_answer_of_its_own(measured: dict[int, Result]) -> None:
    for degree, choice in ((1, EAGLE), (4, Point(drafter="plain"))):
        advice = advise(list(measured.values()), {"engine_settings.tensor_parallel": degree})
        assert advice.measured
        assert advice.result.confirmation
        assert advice.result.confirmation.chosen == choice
        assert "engine_settings.tensor_parallel" not in advice.open_fields
        assert "machine.cores" in advice.open_fields


def test_the_newest_result_of_a_regime_answers(tmp_path: Path, measured: dict[int, Result]) -> None:
    newer = measured[1].model_copy(update={"generated_at": "2999-01-01T00:00:00+00:00", "study": "newer"})
    for name, result in {"a": measured[1], "b": newer}.items():
        write_json_atomically(tmp_path / f"{name}.json", to_plain(result))
    assert advise(read_memory(tmp_path), {"workload": "chat"}).result.study == "newer"


def test_a_field_that_no_regime_has_is_named(measured: dict[int, Result]) -> None:
    with pytest.raises(DataError, match="'tensor_parallel'"):
        advise([measured[1]], {"tensor_parallel": 1})


def test_depths_between_measured_ones_are_predicted_from_tau_and_the_cost_of_a_cycle(
    outcome: Callable[..., Outcome],
) -> None:
    """Cycles cost 1.2 + 0.1 depth target steps; tau is 2, 2.5 and 4 at depths 1, 3 and 5."""
    taus = {1: 2.0, 3: 2.5, 5: 4.0}
    measured = [
        outcome(Point(drafter="chain", values={"depth": depth}), [tau / (1.2 + 0.1 * depth)] * 3, tau=tau)
        for depth, tau in taus.items()
    ]
    found = predict([*measured, outcome(Point(drafter="plain"), [1.0])])
    assert [(each.point.values["depth"], each.between) for each in found] == [(2, (1, 3)), (4, (3, 5))]
    assert [each.speedup for each in found] == pytest.approx([2.25 / 1.4, 3.25 / 1.6])
    assert predict(measured[:2]) == [], "two depths fit any line"
    impossible = outcome(Point(drafter="chain", values={"depth": 3}), [3.0] * 3, tau=2.5)
    assert predict([measured[0], impossible, measured[2]]) == [], "faster than its tau allows"


def test_the_job_says_measured_refuses_and_labels(tmp_path: Path, measured: dict[int, Result]) -> None:
    write_json_atomically(tmp_path / "a.json", to_plain(measured[1]))
    place = ["--memory", str(tmp_path)]

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, [*place, *arguments])

    assert "eagle depth=5" in run().output
    answer = run("--regime", "engine_settings.tensor_parallel=1")
    assert answer.exit_code == 0
    assert answer.output.startswith("measured: chat: eagle depth=5")
    assert run("--regime", "engine_settings.tensor_parallel=4").exit_code == DataError.exit_code
    shown = run("--regime", "engine_settings.tensor_parallel=4", "--cross-regime")
    assert shown.output.startswith("CROSS-REGIME")
    assert "tensor_parallel is 1, wanted 4" in shown.output
    assert run("--memory", str(tmp_path / "none")).exit_code == DataError.exit_code
