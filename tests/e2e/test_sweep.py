"""A serving sweep on the real target, killed and continued. It serves prompt lookup: nothing to train."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from eagleray.corpus.families.catalog import family_prompts
from eagleray.corpus.prompt_table import write_table
from eagleray.tuning.result import read_result
from tests.e2e.conftest import TINY, Job

SMALL = (
    "serving.space={drafters: {prompt_lookup: {depth: {kind: integer, low: 1, high: 4}}}}",
    "serving.default={drafter: prompt_lookup, values: {depth: 2}}",
    "serving.first=[{drafter: plain}]",
    "serving.workloads={code: [code]}",
    "serving.measure={prompts: 2, new_tokens: 8}",
    "serving.confirm_rounds=1",
    "serving.study={trials: 9, sampler: exhaustive, workers: 2}",
)


def stored_trials(run: Path) -> list[FrozenTrial]:
    """What the journal holds; empty before the study was begun."""
    journal = run / "study.journal"
    if not journal.exists():
        return []
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(journal)))
    names = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=names[0], storage=storage).trials if names else []


def finished(run: Path) -> int:
    return sum(trial.state == TrialState.COMPLETE for trial in stored_trials(run))


@pytest.mark.slow
def test_a_sweep_killed_with_its_trials_under_way_measures_every_point_once(
    start_job: Callable[..., Job], tmp_path: Path
) -> None:
    root = tmp_path / "runs"
    run = root / "sweep"
    write_table(root / "demo" / "prompts" / "held_out.jsonl", islice(family_prompts("code", seed=2), 2))
    command = ("jobs.sweep", "--recipe", "configs/sweep.yaml", f"overrides=[run.root={root}]", *SMALL)

    job = start_job(*command)
    job.wait_for(lambda: finished(run) >= 1)
    before = [(t.number, t.values) for t in stored_trials(run) if t.state == TrialState.COMPLETE]
    job.kill()

    job = start_job(*command)
    job.wait_for(lambda: finished(run) > len(before))
    job.processes("ServingActor")[0].kill()
    assert job.wait() == 0, job.output()[-4000:]

    trials = stored_trials(run)
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert [(t.number, t.values) for t in complete if t.number in dict(before)] == before
    points = [tuple(trial.params.values()) for trial in complete]
    assert sorted(points) == [("plain",), *(("prompt_lookup", depth) for depth in (1, 2, 3, 4))]
    lost = [trial for trial in trials if trial.state == TrialState.FAIL]
    assert all("void" in trial.user_attrs for trial in lost), "lost with its process, and tried again"
    assert len(trials) == 5 + len(lost)

    result = read_result(run / "best_code.json")
    assert {trial.state for trial in result.trials} == {"complete"}
    assert all(outcome.feasible for outcome in result.outcomes)
    assert result.confirmation
    assert (run / "sweep.html").stat().st_size > 10_000
    assert (root / "memory" / f"{result.regime_fingerprint}.json").exists()

    job = start_job(*command, "serving.measure.new_tokens=9")
    assert job.wait() == 2
    assert "measure.new_tokens was 8, now 9" in job.output()


def test_a_sweep_without_drafters_says_which_command_makes_them(
    start_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = start_job("jobs.sweep", f"overrides=[run.root={tmp_path / 'runs'}]")
    assert job.wait() == 3
    assert "Run `make demo` first" in job.output()


TRAINING = (
    "training.space={plain: false, drafters: {eagle3: {training.learning_rate: {kind: choice, values: "
    "[1.0e-3, 4.0e-3, 12.0e-3, 30.0e-3]}}, dflash: {training.learning_rate: {kind: choice, values: "
    "[1.0e-3, 4.0e-3, 12.0e-3, 30.0e-3]}}}}",
    "training.first=[]",
    "training.cpu_s=9",
    "training.depths=[1, 3]",
    "training.measure={prompts: 2, new_tokens: 8}",
)


@pytest.mark.slow
def test_a_training_sweep_killed_twice_loses_no_trial_and_trains_no_rung_twice(
    start_job: Callable[..., Job], tmp_path: Path
) -> None:
    root = tmp_path / "runs"
    run = root / "sweep_training"
    job = start_job("jobs.distil", "--recipe", "configs/demo.yaml", *TINY)
    assert job.wait() == 0, job.output()[-4000:]
    command = (
        "jobs.sweep",
        "--recipe",
        "configs/sweep_training.yaml",
        f"overrides=[run.root={root}]",
        *TRAINING,
    )

    def records() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in run.rglob("rung_*.json")}

    kept: dict[str, bytes] = {}
    for enough in (3, 7):
        job = start_job(*command)
        job.wait_for(lambda enough=enough: len(records()) >= enough)
        job.kill()
        assert records().items() >= kept.items()
        kept = records()
    job = start_job(*command)
    assert job.wait() == 0, job.output()[-4000:]

    trials = stored_trials(run)
    assert [trial.number for trial in trials] == list(range(8))
    assert len({tuple(trial.params.items()) for trial in trials}) == 8
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert records().items() >= kept.items(), "a finished rung was trained again"
    result = read_result(run / "best_training.json")
    assert result.confirmation
    whole_s = 8 * 9.0
    assert sum(trial.facts["cpu_s"] for trial in result.trials) < 0.8 * whole_s
