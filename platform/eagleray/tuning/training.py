"""The study of how a drafter is trained: tasks out, outcomes in. No Ray, no clock.

A trial is a chain of tasks: a rung of training, and after each the pruner's word; then, for those that
came to the end, all serving depths interleaved, of which the best is the trial's value. So trainings are
few and serving points many, and a recipe is judged by what its drafter is worth at its best.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagleray.evaluation.interleaved import GroupTimes, pool_rounds
from eagleray.settings import Settings
from eagleray.tuning.config import Objective, Point, TrainingSweep
from eagleray.tuning.ranking import rank
from eagleray.tuning.result import Confirmation, Result, choose
from eagleray.tuning.serving import importances, share_out, summaries
from eagleray.tuning.study import Proposal
from eagleray.tuning.trials import Trials

OBJECTIVE: Objective = "tokens_per_s"
DATA_SHARE = "data_share"
CONFIRM_ROUNDS = 2
"""Times that the last measurement goes over the prompts."""


class RungTask(Settings):
    """Train one rung of a trial."""

    trial: int
    point: Point
    rung: int


class RungDone(Settings):
    """Where a trial's training stands."""

    replay_tau: float
    cpu_s: float
    steps: int
    supervised_tokens: int
    loss: float
    drafter_hash: str | None = None
    """Of the exported drafter, after the last rung."""
    max_depth: int | None = None
    """Largest depth it can draft; None is unbounded."""


class Entry(Settings):
    """A trained drafter at a depth."""

    trial: int
    depth: int


class ScoreTask(Settings):
    """Measure trained drafters, interleaved."""

    entries: tuple[Entry, ...]
    groups: tuple[int, ...] | None = None
    """Which groups of prompts; None: all."""


class Scored(Settings):
    """What was measured, the entries as settings in order."""

    groups: tuple[GroupTimes, ...]
    wall_s: float


Task = RungTask | ScoreTask


@dataclass(frozen=True)
class Token:
    """A task under way: of which trial, and which rung; None is the score."""

    proposal: Proposal
    rung: int | None


def resources(sweep: TrainingSweep) -> tuple[int, ...]:
    """What each rung has used up, in units of the first: 1, 3, 9 for a reduction factor of 3."""
    return tuple(sweep.study.reduction_factor**rung for rung in range(sweep.rungs))


def rung_ends_s(sweep: TrainingSweep) -> tuple[float, ...]:
    """CPU seconds at which each rung ends."""
    used = resources(sweep)
    return tuple(sweep.cpu_s * each / used[-1] for each in used)


def with_values(section: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """A drafter's section of a recipe with the values of a point put in their places."""
    merged: dict[str, Any] = {name: dict(part) for name, part in section.items()}
    for place, value in point.values.items():
        if place != DATA_SHARE:
            part, _, name = place.partition(".")
            merged.setdefault(part, {})[name] = value
    return merged


@dataclass(kw_only=True)
class TrainingTrials(Trials):
    """The study, and the tasks it consists of."""

    sweep: TrainingSweep
    _rungs: dict[int, RungDone] = field(default_factory=dict)
    _next: list[Token] = field(default_factory=list)

    def next_task(self, *, may_begin: bool = True) -> tuple[Token, Task] | None:
        """Trainings that have begun go on first; None while there is nothing to do."""
        if self._next:
            token = self._next.pop(0)
        else:
            proposal = self.study.propose() if may_begin else None
            if proposal is None:
                return None
            # The rungs that a killed driver saw are read, not trained: their records are on disk.
            token = Token(proposal, min(len(proposal.reported), self.sweep.rungs - 1))
        return token, self._task(token)

    def done(self, token: Token, outcome: RungDone | Scored) -> None:
        """Take what a task came to and decide how the trial goes on."""
        proposal = token.proposal
        if isinstance(outcome, Scored):
            self._finish(proposal, outcome)
            return
        assert token.rung is not None
        self._rungs[proposal.number] = outcome
        behind = self.study.report(proposal, resources(self.sweep)[token.rung], outcome.replay_tau)
        last = token.rung == self.sweep.rungs - 1
        if behind and not last:
            self.study.prune(proposal, self._facts(proposal))
        else:
            self._next.append(Token(proposal, None if last else token.rung + 1))

    def failed(self, token: Token, reason: str) -> None:
        """A task raised an error."""
        self.study.fail(token.proposal, reason)

    def lost(self, token: Token, reason: str) -> None:
        """The process of a task died. What the trial has trained is on disk; only the task is done again."""
        attempt = token.proposal.attempt + 1
        if attempt > self.sweep.study.attempts:
            self.study.fail(token.proposal, reason)
        else:
            again = Proposal(
                number=token.proposal.number,
                point=token.proposal.point,
                attempt=attempt,
                reported=token.proposal.reported,
            )
            self._next.append(Token(again, token.rung))

    def cpu_s(self) -> float:
        """CPU seconds that all trials have trained."""
        return sum((view.outcome or {}).get("facts", {}).get("cpu_s", 0.0) for view in self.study.views())

    def depths(self, trial: int) -> tuple[int, ...]:
        """Those of the sweep that a trained drafter can draft."""
        most = self._rungs[trial].max_depth
        return tuple(depth for depth in self.sweep.depths if most is None or depth <= most)

    def confirm_tasks(self, num_groups: int) -> list[ScoreTask]:
        """The last measurement: the best trials, the runner-up and the default, at their best depths."""
        finished = {view.point: view for view in self.study.views() if view.state == "complete"}
        ranked = sorted(finished.values(), key=lambda view: -view.values[0])
        if not ranked:
            return []
        points = list(dict.fromkeys([*(view.point for view in ranked[:2]), self.default()]))
        entries = tuple(
            Entry(trial=finished[point].number, depth=(finished[point].outcome or {})["facts"]["depth"])
            for point in points
        )
        shares = share_out(num_groups, self.sweep.study.workers)
        return [ScoreTask(entries=entries, groups=share) for _ in range(CONFIRM_ROUNDS) for share in shares]

    def default(self) -> Point:
        """What the winner is held against: the first of the given points that was trained to its end, else
        the best trial itself."""
        finished = [view for view in self.study.views() if view.state == "complete"]
        given = [point for point in self.sweep.first if point in {view.point for view in finished}]
        return given[0] if given else max(finished, key=lambda view: view.values).point

    def confirm(self, tasks: Sequence[ScoreTask], measured: Sequence[Scored]) -> Confirmation:
        """Choose from the last measurement."""
        points = {view.number: view.point for view in self.study.views()}
        groups = pool_rounds(group for part in measured for group in part.groups)
        wall_s = sum(part.wall_s for part in measured)
        outcomes = [
            self.summarise(points[entry.trial], groups, place, wall_s)
            for place, entry in enumerate(tasks[0].entries)
        ]
        return choose(outcomes, self.default(), OBJECTIVE, self.scale, self.sweep.study.bootstrap)

    def result(self, confirmation: Confirmation | None) -> Result:
        """Everything that was found."""
        trials = summaries(self.study)
        found = [trial.outcome for trial in trials if trial.outcome and trial.state == "complete"]
        config = self.sweep.study.bootstrap
        ranking = rank(found, (OBJECTIVE,), self.scale, config)
        return Result(
            study=self.study.name,
            workload="training",
            regime=self.regime,
            regime_fingerprint=self.regime.fingerprint,
            objectives=(OBJECTIVE,),
            scale=self.scale,
            default=self.default() if found else trials[0].point,
            trials=trials,
            ties=tuple(outcome.point for outcome in ranking.ties),
            front=tuple(outcome.point for outcome in ranking.front),
            importances=importances(self.study, OBJECTIVE),
            confirmation=confirmation,
        )

    def _task(self, token: Token) -> Task:
        number = token.proposal.number
        if token.rung is not None:
            return RungTask(trial=number, point=token.proposal.point, rung=token.rung)
        return ScoreTask(entries=tuple(Entry(trial=number, depth=depth) for depth in self.depths(number)))

    def _finish(self, proposal: Proposal, scored: Scored) -> None:
        outcomes = [
            self.summarise(proposal.point, scored.groups, place, scored.wall_s)
            for place in range(len(self.depths(proposal.number)))
        ]
        feasible = [outcome for outcome in outcomes if outcome.feasible] or outcomes
        best = max(feasible, key=lambda outcome: outcome.figures[OBJECTIVE].value)
        serving = {
            str(depth): outcome.figures[OBJECTIVE].value
            for depth, outcome in zip(self.depths(proposal.number), outcomes, strict=True)
        }
        depth = self.depths(proposal.number)[outcomes.index(best)]
        facts = {**self._facts(proposal)["facts"], "depth": depth, "tokens_per_s_by_depth": serving}
        kept = best.model_copy(update={"facts": facts})
        self.study.finish(
            proposal,
            [best.figures[OBJECTIVE].value],
            kept.model_dump(mode="json"),
            feasible=best.feasible,
            reason=f"answers differ from plain decoding: {best.divergence}" if best.divergence else None,
        )

    def _facts(self, proposal: Proposal) -> dict[str, Any]:
        return {"facts": self._rungs[proposal.number].model_dump(mode="json")}
