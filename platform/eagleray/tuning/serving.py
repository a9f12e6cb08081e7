"""The study of what a drafter is served with: tasks out, outcomes in. No Ray, no clock.

One task measures some points on some of a workload's groups of prompts. While the study runs a task
holds one point and all groups; the last measurement holds the contenders, and shares the groups out.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from eagleray.drafters.base import DraftSource
from eagleray.drafters.partial_block import PartialBlock
from eagleray.engines.base import DraftSetting
from eagleray.evaluation.interleaved import GroupTimes, pool_rounds
from eagleray.settings import Settings
from eagleray.speculation.config import TreeSetting
from eagleray.tuning.config import PLAIN, Point, ServingSweep
from eagleray.tuning.outcome import Outcome
from eagleray.tuning.ranking import Ranking, contenders, rank
from eagleray.tuning.result import Confirmation, Result, TrialSummary, choose
from eagleray.tuning.study import Proposal, Study
from eagleray.tuning.trials import Trials

MIN_TRIALS_FOR_IMPORTANCE = 8
BEST_SHARE = 0.25


class MeasureTask(Settings):
    """What one process is asked to do."""

    workload: str
    points: tuple[Point, ...]
    groups: tuple[int, ...] | None = None
    """Which groups of prompts; None: all."""


class Measured(Settings):
    """What it answers."""

    groups: tuple[GroupTimes, ...]
    """Each with the points as its settings, in order."""
    wall_s: float


class ServingPoint(Settings):
    """The values of a point that drafts."""

    depth: int
    """Draft tokens that are verified a cycle."""
    adaptive: bool = False
    """`depth` is the most; the engine chooses in every cycle."""
    block_size: int | None = None
    """Slots that are run, the anchor included; None: as many as the depth needs."""
    tree_nodes: int | None = None
    """Most tokens of a draft tree; None drafts chains, unless `tree_top_k` is given."""
    tree_top_k: int | None = None
    """Most children of a node."""

    @property
    def tree(self) -> TreeSetting | None:
        """How the draft may branch."""
        given = {"nodes": self.tree_nodes, "top_k": self.tree_top_k}
        bounds = {name: value for name, value in given.items() if value is not None}
        return TreeSetting(**bounds) if bounds else None


def draft_setting(point: Point, sources: Mapping[str, DraftSource]) -> DraftSetting | None:
    """The point as an engine takes it; None is plain decoding."""
    if point.drafter == PLAIN:
        return None
    serving, source = ServingPoint.model_validate(point.values), sources[point.drafter]
    if serving.block_size is not None:
        source = PartialBlock(source, serving.block_size)
    return DraftSetting(source=source, depth=serving.depth, tree=serving.tree, adaptive=serving.adaptive)


@dataclass(kw_only=True)
class ServingTrials(Trials):
    """One workload's study, and the tasks it consists of."""

    workload: str
    sweep: ServingSweep

    def next_task(self) -> tuple[Proposal, MeasureTask] | None:
        """The next trial; None while there is none to begin."""
        proposal = self.study.propose()
        if proposal is None:
            return None
        return proposal, MeasureTask(workload=self.workload, points=(proposal.point,))

    def done(self, proposal: Proposal, measured: Measured) -> Outcome:
        """Take what a trial measured."""
        outcome = self.summarise(proposal.point, measured.groups, 0, measured.wall_s)
        values = [outcome.figures[name].value for name in self.sweep.objectives]
        reason = f"answers differ from plain decoding: {outcome.divergence}" if outcome.divergence else None
        self.study.finish(
            proposal, values, outcome.model_dump(mode="json"), feasible=outcome.feasible, reason=reason
        )
        return outcome

    def ranking(self) -> Ranking:
        """Of what was measured so far."""
        return rank(self._outcomes(), self.sweep.objectives, self.scale, self.sweep.study.bootstrap)

    def confirm_tasks(self, num_groups: int) -> list[MeasureTask]:
        """The last measurement, cut so that every worker has as much to do; empty with nothing feasible."""
        ranking = self.ranking()
        if ranking.best is None:
            return []
        points = contenders(ranking, self.sweep.default)
        workers = self.sweep.study.workers
        shares = share_out(num_groups, workers)
        return [
            MeasureTask(workload=self.workload, points=points, groups=share)
            for _ in range(self.sweep.confirm_rounds)
            for share in shares
        ]

    def confirm(self, tasks: Sequence[MeasureTask], measured: Sequence[Measured]) -> Confirmation:
        """Choose from the last measurement."""
        groups = pool_rounds(group for part in measured for group in part.groups)
        wall_s = sum(part.wall_s for part in measured)
        outcomes = [
            self.summarise(point, groups, place, wall_s) for place, point in enumerate(tasks[0].points)
        ]
        objective, config = self.sweep.objectives[0], self.sweep.study.bootstrap
        return choose(outcomes, self.sweep.default, objective, self.scale, config)

    def result(self, confirmation: Confirmation | None) -> Result:
        """Everything that was found."""
        ranking = self.ranking()
        return Result(
            study=self.study.name,
            workload=self.workload,
            regime=self.regime,
            regime_fingerprint=self.regime.fingerprint,
            objectives=self.sweep.objectives,
            scale=self.scale,
            default=self.sweep.default,
            trials=summaries(self.study),
            ties=tuple(outcome.point for outcome in ranking.ties),
            front=tuple(outcome.point for outcome in ranking.front),
            importances=importances(self.study, self.sweep.objectives[0]),
            confirmation=confirmation,
        )

    def _outcomes(self) -> list[Outcome]:
        return [
            t.outcome for t in summaries(self.study) if t.outcome and t.state in ("complete", "infeasible")
        ]


def share_out(num_groups: int, workers: int) -> list[tuple[int, ...]]:
    """Groups of prompts for each worker, so that all are busy to the end."""
    shares = [tuple(range(worker, num_groups, workers)) for worker in range(workers)]
    return [share for share in shares if share]


def summaries(study: Study) -> tuple[TrialSummary, ...]:
    """The trials of a study, as they are stored with a result."""
    return tuple(
        TrialSummary(
            number=view.number,
            point=view.point,
            state=view.state,
            outcome=Outcome.model_validate(view.outcome)
            if view.outcome and "figures" in view.outcome
            else None,
            reason=view.reason,
            rungs=view.intermediate,
            facts=(view.outcome or {}).get("facts", {}),
        )
        for view in study.views()
    )


def importances(study: Study, objective: str) -> dict[str, float]:
    """How much each parameter decides whether a trial is among the best quarter (PED-ANOVA).

    The method is that of arXiv 2304.10255. Empty while there are too few trials to say.
    """
    finished = [view for view in study.views() if view.state == "complete"]
    if len(finished) < MIN_TRIALS_FOR_IMPORTANCE:
        return {}
    place = study.objectives.index(objective)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that low is good, and that a drafter was tried once
        found = get_param_importances(
            study.optuna_study,
            evaluator=PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE),
            target=lambda trial: -trial.values[place],
            normalize=True,
        )
    return {name: float(value) for name, value in found.items()}
