"""One Optuna study, driven by ask and tell: it proposes points and is told what became of them.

It knows no Ray and no clock. Whoever drives it asks for a proposal whenever a process is free:

    propose -> (report -> ... ->) finish | prune | fail

All of it is in the storage at any moment, so that a driver may be killed anywhere: trials that were
running are proposed again, under their own numbers, with the rungs they have reported.
"""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, TrialState

from eagleray.errors import ConfigError
from eagleray.settings import differences
from eagleray.tuning.config import Point, StudyConfig
from eagleray.tuning.search import build_pruner, build_sampler
from eagleray.tuning.space import Space

CONTRACT = "contract"
OUTCOME, REASON, ATTEMPT = "outcome", "reason", "attempt"
EXACTNESS = "exactness"
"""Name of the constraint: above 0 where an answer differs from plain decoding."""
COPY_OF, VOID = "copy_of", "void"
MAX_REPEATS = 3
"""Known points that a sampler may draw in a row before it is given one that is new."""
MAX_REPEATS_INFINITE = 100
"""The same where points cannot be counted; a sampler that still finds none ends the study."""

State = Literal["running", "complete", "infeasible", "pruned", "failed"]


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A point to measure, as one trial."""

    number: int
    point: Point
    attempt: int
    reported: dict[int, float] = field(default_factory=dict)
    """Resource -> value of the rungs that an earlier driver reported."""


@dataclass(frozen=True, kw_only=True)
class TrialView:
    """One trial, for tables and pages."""

    number: int
    point: Point
    state: State
    values: tuple[float, ...]
    outcome: dict[str, Any] | None
    reason: str | None
    intermediate: dict[int, float]


class Study:
    """A study in a storage.

    Args:
        contract: Plain data that every trial depends on (`terms`, regime). A study that was
            begun under another one is refused.
        objectives: Names of what is maximised, in order.
        max_resource: Resource of the last rung; 1 where trials have no rungs.

    Raises:
        ConfigError: The study was begun under another contract; the differences are named, and no trial
            is added.
    """

    def __init__(
        self,
        storage: optuna.storages.BaseStorage,
        name: str,
        space: Space,
        config: StudyConfig,
        *,
        objectives: Sequence[str],
        contract: Mapping[str, Any],
        max_resource: int = 1,
    ):
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space = space
        self.config = config
        self.objectives = tuple(objectives)
        check_contract(storage, name, contract)
        self._study = optuna.create_study(
            storage=storage,
            study_name=name,
            directions=["maximize"] * len(objectives),
            load_if_exists=True,
            pruner=build_pruner(config, max_resource),
        )
        self._study.set_user_attr(CONTRACT, _plain(contract))
        # Restarted with its first seed, a sampler would draw its first points again.
        self._study.sampler = build_sampler(config, config.seed + len(self._study.trials))
        self._trials: dict[int, optuna.Trial] = {}
        # The storage knows a trial by this id alone; there is no public way to take a trial over.
        self._stale = [
            optuna.Trial(self._study, trial._trial_id)
            for trial in self._begun()
            if trial.state == TrialState.RUNNING
        ]

    @property
    def name(self) -> str:
        """Of the study in its storage."""
        return self._study.study_name

    def remember(self, name: str, value: Any) -> None:
        """Keep plain data with the study."""
        self._study.set_user_attr(name, value)

    def recall(self, name: str) -> Any:
        """What was kept; None if nothing was."""
        return self._study.user_attrs.get(name)

    @property
    def optuna_study(self) -> optuna.Study:
        """For importances and for other readers of Optuna."""
        return self._study

    def enqueue(self, points: Sequence[Point]) -> None:
        """Try these points before the sampler chooses; those that the study has seen are passed over.

        Raises:
            ConfigError: A point is not in the space.
        """
        for point in points:
            self._study.enqueue_trial(self.space.params(point), skip_if_exists=True)

    def propose(self) -> Proposal | None:
        """The next point; None when enough were proposed or the space is exhausted.

        Trials that a killed driver left running come first.
        """
        patience = MAX_REPEATS if self.space.finite else MAX_REPEATS_INFINITE
        repeats = patience if self.config.sampler == "exhaustive" else 0
        while self._stale or self.counted < self.config.trials:
            if (
                not self._stale
                and repeats >= patience
                and not self._waiting
                and not self._enqueue_new_point()
            ):
                return None
            trial = self._stale.pop(0) if self._stale else self._study.ask()
            point = self.space.suggest(trial)
            twin = self._twin(trial.number, point)
            if twin is None:
                self._trials[trial.number] = trial
                return self._proposal(trial, point)
            self._copy(trial, twin)
            repeats += 1
        return None

    @property
    def counted(self) -> int:
        """Trials that count against `trials`: all but copies and those that never had a point."""
        return sum(COPY_OF not in t.user_attrs and VOID not in t.user_attrs for t in self._begun())

    @property
    def planned(self) -> int:
        """Trials that the study will have counted in the end, unless time runs out."""
        if not self.space.finite:
            return self.config.trials
        return min(self.config.trials, sum(1 for _ in self.space.points()))

    @property
    def exhausted(self) -> bool:
        """Whether every point of a finite space has been tried."""
        return self.space.finite and self._new_point() is None

    def report(self, proposal: Proposal, resource: int, value: float) -> bool:
        """Take the value of a rung; True if the trial should end here."""
        trial = self._trials[proposal.number]
        if resource not in self._study.get_trials(deepcopy=False)[proposal.number].intermediate_values:
            trial.report(value, resource)
        return not math.isfinite(value) or trial.should_prune()

    def finish(
        self,
        proposal: Proposal,
        values: Sequence[float],
        outcome: Mapping[str, Any],
        *,
        feasible: bool = True,
        reason: str | None = None,
    ) -> None:
        """Take the values of a trial, one per objective. NaN and infinity make it a failed trial."""
        trial = self._trials.pop(proposal.number)
        trial.set_user_attr(OUTCOME, dict(outcome))
        trial.set_constraint(EXACTNESS, 0.0 if feasible else 1.0)
        if reason:
            trial.set_user_attr(REASON, reason)
        odd = [
            f"{name} is {value}"
            for name, value in zip(self.objectives, values, strict=True)
            if not math.isfinite(value)
        ]
        if odd:
            trial.set_user_attr(REASON, "; ".join(odd))
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, list(values))

    def prune(self, proposal: Proposal, outcome: Mapping[str, Any]) -> None:
        """End a trial early."""
        trial = self._trials.pop(proposal.number)
        trial.set_user_attr(OUTCOME, dict(outcome))
        self._study.tell(trial, state=TrialState.PRUNED)

    def fail(self, proposal: Proposal, reason: str, *, lost: bool = False) -> None:
        """End a trial without a result.

        Args:
            lost: Its process died, which says nothing of the point: it is tried again, up to `attempts`.
        """
        trial = self._trials.pop(proposal.number)
        trial.set_user_attr(REASON, reason)
        if lost and proposal.attempt < self.config.attempts:
            # First, so that a driver killed here tries the point twice rather than never.
            self._study.enqueue_trial(
                self.space.params(proposal.point), user_attrs={ATTEMPT: proposal.attempt + 1}
            )
            trial.set_user_attr(VOID, True)
        self._study.tell(trial, state=TrialState.FAIL)

    def views(self) -> list[TrialView]:
        """Every trial that has a point of its own, in the order of their numbers."""
        views = []
        for trial in self._begun():
            point = self.space.point(trial.params)
            if point is not None and COPY_OF not in trial.user_attrs and VOID not in trial.user_attrs:
                views.append(_view(trial, point))
        return views

    def _begun(self) -> list[FrozenTrial]:
        return [t for t in self._study.get_trials(deepcopy=False) if t.state != TrialState.WAITING]

    @property
    def _waiting(self) -> bool:
        return any(t.state == TrialState.WAITING for t in self._study.get_trials(deepcopy=False))

    def _twin(self, number: int, point: Point) -> FrozenTrial | None:
        """An earlier trial of the same point."""
        return next(
            (
                trial
                for trial in self._begun()
                if trial.number < number
                and VOID not in trial.user_attrs
                and self.space.point(trial.params) == point
            ),
            None,
        )

    def _copy(self, trial: optuna.Trial, twin: FrozenTrial) -> None:
        """Give a repeated trial the result of the first one, so that the sampler learns that it is known."""
        trial.set_user_attr(COPY_OF, twin.number)
        if twin.state == TrialState.COMPLETE:
            trial.set_constraint(EXACTNESS, twin.constraints.get(EXACTNESS, 0.0))
            self._study.tell(trial, twin.values)
        else:
            self._study.tell(
                trial, state=TrialState.PRUNED if twin.state != TrialState.FAIL else TrialState.FAIL
            )

    def _new_point(self) -> Point | None:
        """The first point, in an order that the seed fixes, that was never tried."""
        known = {
            point.name
            for trial in self._begun()
            if VOID not in trial.user_attrs and (point := self.space.point(trial.params)) is not None
        }
        points = list(self.space.points())
        random.Random(self.config.seed).shuffle(points)
        return next((point for point in points if point.name not in known), None)

    def _enqueue_new_point(self) -> bool:
        point = self._new_point() if self.space.finite else None
        if point is not None:
            self._study.enqueue_trial(self.space.params(point))
        return point is not None

    def _proposal(self, trial: optuna.Trial, point: Point) -> Proposal:
        frozen = self._study.get_trials(deepcopy=False)[trial.number]
        return Proposal(
            number=trial.number,
            point=point,
            attempt=trial.user_attrs.get(ATTEMPT, 1),
            reported=dict(frozen.intermediate_values),
        )


def terms(space: Space, objectives: Sequence[str], **more: Any) -> dict[str, Any]:
    """The part of a contract that is known on paper."""
    return {"space": space.config.model_dump(mode="json"), "maximise": list(objectives), **more}


def check_contract(storage: optuna.storages.BaseStorage, name: str, contract: Mapping[str, Any]) -> None:
    """Hold a study that may exist already to these terms, of which some may be left out.

    Raises:
        ConfigError: It was begun under others; names what differs.
    """
    if name not in optuna.get_all_study_names(storage):
        return
    study = optuna.load_study(study_name=name, storage=storage)
    begun = study.user_attrs.get(CONTRACT, {})
    differing = differences({key: begun.get(key) for key in contract}, _plain(contract))
    if differing:
        raise ConfigError(
            f"Study {name!r} was begun under other terms: {'; '.join(differing)}. Its {len(study.trials)} "
            "trials would not compare. Restore the recipe, or give the sweep another run.name."
        )


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(content))
    return plain


def _view(trial: FrozenTrial, point: Point) -> TrialView:
    states: dict[TrialState, State] = {
        TrialState.RUNNING: "running",
        TrialState.COMPLETE: "complete",
        TrialState.PRUNED: "pruned",
        TrialState.FAIL: "failed",
    }
    violated = any(value > 0 for value in trial.constraints.values())
    state = states[trial.state]
    return TrialView(
        number=trial.number,
        point=point,
        state="infeasible" if state == "complete" and violated else state,
        values=tuple(trial.values or ()),
        outcome=trial.user_attrs.get(OUTCOME),
        reason=trial.user_attrs.get(REASON),
        intermediate=dict(trial.intermediate_values),
    )
