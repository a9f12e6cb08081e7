"""Planted outcomes, from measuring to promotion: a loss is a loss, a null undecided, a lie stopped."""

import dataclasses
import random
from typing import Any

import pytest

from eagleray.evaluation.aggregate import RunFacts, build_report
from eagleray.evaluation.measure import Bench, run_unit
from eagleray.evaluation.promotion import objections
from eagleray.evaluation.units import plan_units
from eagleray.evaluation.workloads import describe_workloads


def evaluate(bench: Bench, engine: Any, **sources: Any) -> dict[str, Any]:
    """A whole evaluation, at one depth."""
    config = bench.config.model_copy(update={"default_depths": (3,), "hf_prompts": 0})
    bench = dataclasses.replace(bench, engine=engine, sources=sources, config=config)
    sizes = {family: len(prompts) for family, prompts in bench.prompts.items()}
    units = plan_units(config, sizes, dict.fromkeys(sources))
    return build_report(
        units,
        [run_unit(unit, bench) for unit in units],
        regime=bench.regime,
        bootstrap=config.bootstrap,
        facts=RunFacts(workloads=describe_workloads(bench.prompts, set())),
    )


def noisy(engine_class: type, seed: int = 5) -> Any:
    """The pretend engine on a machine whose speed varies by a tenth from call to call."""
    draw = random.Random(seed)

    class Noisy(engine_class):
        def generate(self, requests: Any, **options: Any) -> Any:
            run = super().generate(requests, **options)
            factor = draw.gauss(1.0, 0.1)
            times = dataclasses.replace(
                run.times, draft_s=run.times.draft_s * factor, verify_s=run.times.verify_s * factor
            )
            return dataclasses.replace(run, times=times)

    return Noisy()


def lossy(engine_class: type) -> Any:
    """The pretend engine with a drafter whose last token of one prompt is not the target's."""

    class Lossy(engine_class):
        def _generation(self, request: Any, draft: Any) -> Any:
            generation = super()._generation(request, draft)
            if draft is None or request.prompt_ids[-1] != 100:
                return generation
            return dataclasses.replace(generation, answer_ids=(*generation.answer_ids[:-1], 7))

    return Lossy()


@pytest.mark.parametrize(("good", "draft_s"), [(0, 0.3), (1, 3.0)], ids=["tau 1.0", "tau 2.0 but slow"])
def test_a_planted_loss_is_called_a_loss(bench, pretend, good, draft_s):
    report = evaluate(bench, noisy(pretend.Engine), planted=pretend.Source(good, draft_s))
    for entry in report["drafters"]["planted"]["families"].values():
        assert entry["verdict"] == "loss"
        assert entry["acceptance_length"] == (1.0 if good == 0 else 2.0)
    assert objections(report, "planted", report["regime"])


def test_a_planted_null_is_undecided(bench, pretend):
    # Two tokens a cycle, each cycle as long as two plain steps.
    report = evaluate(bench, noisy(pretend.Engine), planted=pretend.Source(1, 1.0))
    for entry in report["drafters"]["planted"]["families"].values():
        assert entry["verdict"] == "undecided"
        assert entry["speedup_low"] < 1.0 < entry["speedup_high"]
    assert any("undecided" in reason for reason in objections(report, "planted", report["regime"]))


def test_a_planted_lossy_engine_fails_the_gate_however_fast_it_is(bench, pretend):
    report = evaluate(bench, lossy(pretend.Engine), planted=pretend.Source(9, 0.0))
    entry = report["drafters"]["planted"]["families"]["code"]
    assert entry["speedup_low"] > 1.5
    assert entry["greedy_exact_ratio"] < 1.0
    assert entry["verdict"] == "undecided"
    reasons = objections(report, "planted", report["regime"])
    assert any("equal plain decoding" in reason for reason in reasons)


def test_a_planted_win_passes_the_gate(bench, pretend):
    report = evaluate(bench, noisy(pretend.Engine), planted=pretend.Source(9, 0.1))
    report["regime"]["drafter_hashes"] = {"planted": "p"}
    assert {e["verdict"] for e in report["drafters"]["planted"]["families"].values()} == {"win"}
    assert objections(report, "planted", report["regime"]) == []
