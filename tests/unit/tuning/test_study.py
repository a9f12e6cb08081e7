"""What a study promises whatever happens to it: kills, repetitions, odd values, changed recipes."""

import math
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
from optuna.storages.journal import JournalFileOpenLock
from optuna.trial import TrialState

from eagleray.errors import ClusterError, ConfigError
from eagleray.tuning.config import Choice, Integer, Point, Real, SpaceConfig
from eagleray.tuning.storage import JOURNAL, cut_torn_line, one_driver
from eagleray.tuning.study import Proposal, Study

OpenStudy = Callable[..., Study]
MakePoint = Callable[..., Point]


def grid(depths: tuple[int, ...] = (1, 2), blocks: tuple[int, ...] = (4, 8, 16)) -> SpaceConfig:
    parameters = {"block_size": Choice(values=blocks), "depth": Choice(values=depths)}
    return SpaceConfig(plain=False, drafters={"block": parameters})


def value(point: Point) -> float:
    """A figure that differs from point to point."""
    return float(sum(hash_free * (place + 1) for place, hash_free in enumerate(map(ord, point.name)))) % 97


def run(study: Study, limit: int = 1000) -> list[Point]:
    """Measure what the study proposes, at once."""
    measured = []
    while len(measured) < limit and (proposal := study.propose()):
        measured.append(proposal.point)
        study.finish(proposal, [value(proposal.point)], {})
    return measured


@pytest.mark.parametrize(
    ("begun", "changed"),
    [
        (grid((1, 2, 4)), grid((1, 2, 4, 8))),
        (
            SpaceConfig(plain=False, drafters={"block": {"depth": Integer(low=1, high=4)}}),
            SpaceConfig(plain=False, drafters={"block": {"depth": Integer(low=1, high=8)}}),
        ),
    ],
    ids=["choices", "range"],
)
def test_a_changed_space_is_refused_before_a_trial_is_added(
    open_study: OpenStudy, begun: SpaceConfig, changed: SpaceConfig
) -> None:
    """Field case O1: Optuna itself fails inside the trial, or takes the new range without a word."""
    run(open_study(begun), 3)
    with pytest.raises(ConfigError, match=r"space\.drafters\.block\.depth\.(values|high) was .*, now"):
        open_study(changed)
    assert len(open_study(begun).views()) == 3


def test_changed_objectives_are_refused_with_both_named(open_study: OpenStudy) -> None:
    """Field case O1: `load_if_exists` ignores another direction."""
    run(open_study(objectives=("v",)), 3)
    with pytest.raises(ConfigError, match=r"maximise was \['v'\], now \['tau'\]"):
        open_study(objectives=("tau",))
    assert len(open_study(objectives=("v",)).views()) == 3


@pytest.mark.parametrize("sampler", ["tpe", "random", "exhaustive", "nsga2"])
def test_every_point_of_a_small_grid_is_measured_once_and_the_study_ends(
    open_study: OpenStudy, sampler: str
) -> None:
    """Field case O5: six points, a budget of twenty."""
    study = open_study(grid(), trials=20, sampler=sampler)
    assert study.planned == 6
    measured = run(study)
    assert sorted(point.name for point in measured) == sorted(p.name for p in study.space.points())
    assert len(study.views()) == 6
    assert study.exhausted


@pytest.mark.parametrize("sampler", ["tpe", "random", "exhaustive"])
def test_the_same_seed_gives_the_same_order(tmp_path: Path, open_study: OpenStudy, sampler: str) -> None:
    first = run(open_study(grid(), sampler=sampler, seed=5))
    (tmp_path / JOURNAL).unlink()
    assert run(open_study(grid(), sampler=sampler, seed=5)) == first


def test_repetitions_are_marked_copies_and_do_not_use_up_the_budget(open_study: OpenStudy) -> None:
    study = open_study(grid(), trials=6)
    assert len(run(study)) == 6
    stored = study.optuna_study.trials
    copies = [trial for trial in stored if "copy_of" in trial.user_attrs]
    assert copies
    for trial in copies:
        original = stored[trial.user_attrs["copy_of"]]
        assert (trial.params, trial.values) == (original.params, original.values)


def test_the_default_and_known_points_come_first_and_only_once(
    open_study: OpenStudy, point: MakePoint
) -> None:
    known = [point("chain", depth=3), point("plain"), point("chain", depth=3)]
    study = open_study()
    study.enqueue(known)
    assert run(study, 2) == known[:2]
    again = open_study()
    again.enqueue(known)
    assert set(run(again)).isdisjoint(known)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_a_failed_trial(open_study: OpenStudy, odd: float) -> None:
    study = open_study()
    proposal = study.propose()
    assert proposal
    study.finish(proposal, [odd], {"kept": 1})
    (view,) = study.views()
    assert (view.state, view.values, view.outcome) == ("failed", (), {"kept": 1})
    assert view.reason == f"v is {odd}"
    assert proposal.point not in run(study)


def test_an_infeasible_trial_keeps_its_value_and_is_not_called_complete(open_study: OpenStudy) -> None:
    study = open_study()
    proposal = study.propose()
    assert proposal
    study.finish(proposal, [1e6], {}, feasible=False, reason="answers differ")
    (view,) = study.views()
    assert (view.state, view.values, view.reason) == ("infeasible", (1e6,), "answers differ")


@pytest.mark.parametrize("kills", [1, 3])
def test_trials_under_way_at_a_kill_are_proposed_again_under_their_numbers(
    open_study: OpenStudy, kills: int
) -> None:
    study = open_study(grid(), trials=6)
    finished = run(study, 2)
    under_way = [study.propose(), study.propose()]
    for _ in range(kills):
        study = open_study(grid(), trials=6)
        assert [study.propose(), study.propose()] == under_way
    study = open_study(grid(), trials=6)
    rest = run(study)
    assert sorted(p.name for p in finished + rest) == sorted(p.name for p in study.space.points())
    assert {view.state for view in study.views()} == {"complete"}
    assert [view.number for view in study.views()[:4]] == [0, 1, 2, 3][: len(study.views())]


def test_a_trial_killed_before_its_point_was_chosen_gets_one(open_study: OpenStudy, point: MakePoint) -> None:
    study = open_study()
    study.enqueue([point("chain", depth=2)])
    study.optuna_study.ask()  # and the driver dies
    again = open_study()
    proposal = again.propose()
    assert proposal
    assert (proposal.number, proposal.point) == (0, point("chain", depth=2))


def test_the_rungs_of_a_trial_survive_a_kill(open_study: OpenStudy) -> None:
    study = open_study(pruner="successive_halving")
    proposal = study.propose()
    assert proposal
    study.report(proposal, 1, 1.5)
    study.report(proposal, 3, 1.8)
    again = open_study(pruner="successive_halving").propose()
    assert again
    assert again.reported == {1: 1.5, 3: 1.8}


def test_a_lost_process_costs_one_attempt_and_not_the_point(open_study: OpenStudy) -> None:
    study = open_study(attempts=2, sampler="exhaustive")
    first = study.propose()
    assert first
    study.fail(first, "node died", lost=True)
    second = study.propose()
    assert second
    assert (second.point, second.attempt) == (first.point, 2)
    study.fail(second, "node died", lost=True)
    assert [(view.point, view.state) for view in study.views()] == [(first.point, "failed")]
    assert first.point not in run(study)


def test_successive_halving_ends_the_worse_of_two_early(open_study: OpenStudy) -> None:
    study = open_study(pruner="successive_halving", sampler="exhaustive")
    good, bad = study.propose(), study.propose()
    assert good
    assert bad
    assert not study.report(good, 1, 2.0)
    assert study.report(bad, 1, 1.0)
    study.prune(bad, {"cpu_s": 3.0})
    assert study.views()[1].state == "pruned"
    assert study.report(good, 3, math.nan), "a value that is no number ends a trial too"


def test_a_torn_record_at_the_end_of_the_journal_is_cut(tmp_path: Path, open_study: OpenStudy) -> None:
    run(open_study(), 2)
    journal = tmp_path / JOURNAL
    with journal.open("ab") as stream:
        stream.write(b'{"op_code":4,"worker_id":"x"')
    assert len(open_study().views()) == 2
    assert journal.read_bytes().endswith(b"}\n")
    whole = journal.read_bytes()
    cut_torn_line(journal)
    assert journal.read_bytes() == whole


def hold_lock(path: str, seconds: float) -> None:
    lock = JournalFileOpenLock(path)
    lock.acquire()
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        Path(path).read_bytes()
        time.sleep(0.01)
    lock.release()


def test_a_storage_that_another_process_holds_delays_the_driver_and_fails_no_trial(
    tmp_path: Path, open_study: OpenStudy
) -> None:
    """Field case O3: 40 trials, 8 at a time, beside a process that locks the file and reads it in a loop."""
    space = SpaceConfig(plain=False, drafters={"a": {"x": Real(low=0.0, high=1.0)}})
    study = open_study(space, trials=40, sampler="random")
    context = multiprocessing.get_context("spawn")
    viewer = context.Process(target=hold_lock, args=(str(tmp_path / JOURNAL), 1.5))
    viewer.start()
    numbers = []
    with ThreadPoolExecutor(8) as pool:
        running: list[tuple[Proposal, object]] = []
        while True:
            while len(running) < 8 and (proposal := study.propose()):
                running.append((proposal, pool.submit(time.sleep, 0.01)))
            if not running:
                break
            proposal, ended = running.pop(0)
            ended.result()  # type: ignore[attr-defined]
            study.finish(proposal, [1.0], {})
            numbers.append(proposal.number)
    viewer.join()
    assert sorted(numbers) == list(range(40))
    assert {trial.state for trial in study.optuna_study.trials} == {TrialState.COMPLETE}


def test_a_sweep_has_one_driver_at_a_time(tmp_path: Path) -> None:
    with one_driver(tmp_path), pytest.raises(ClusterError, match=r"run\.name"), one_driver(tmp_path):
        pass
    with one_driver(tmp_path):
        pass


def test_optuna_reads_the_storage_by_itself(tmp_path: Path, open_study: OpenStudy) -> None:
    run(open_study(grid()), 6)
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / JOURNAL))
    loaded = optuna.load_study(study_name="study", storage=optuna.storages.JournalStorage(backend))
    assert loaded.best_value == max(value(point) for point in open_study(grid()).space.points())


@pytest.mark.parametrize("address", ["nonsense", "postgresql://nobody@localhost:1/none"])
def test_a_storage_that_cannot_be_opened_is_named(tmp_path: Path, address: str) -> None:
    from eagleray.tuning.storage import open_storage

    with pytest.raises(ConfigError, match=r"study\.storage"):
        open_storage(address, tmp_path)


def test_a_database_holds_a_study_as_the_journal_does(tmp_path: Path) -> None:
    from eagleray.tuning.config import StudyConfig
    from eagleray.tuning.space import Space
    from eagleray.tuning.storage import open_storage
    from eagleray.tuning.study import terms

    def open_in_database() -> Study:
        space = Space(grid())
        storage = open_storage(f"sqlite:///{tmp_path / 'study.db'}", tmp_path)
        config = StudyConfig(trials=6)
        return Study(storage, "s", space, config, objectives=["v"], contract=terms(space, ["v"]))

    run(open_in_database(), 4)
    assert len(run(open_in_database())) == 2
