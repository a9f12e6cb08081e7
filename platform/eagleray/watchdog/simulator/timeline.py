"""When simulated ranks do what: steps, pauses and faults, all jobs of a batch at once.

A step of rank r: its work (data, target, forward, backward), then it waits for the slowest rank, then they
exchange, then the optimiser. At most one thing is inserted into a step: a pause with a phase of its own, a
standstill inside a phase, or a longer exchange. A fault freezes one rank at a place of its step, or the
exchange for ever. Legend: `_J` jobs; `_JR` jobs by ranks; `elapsed` counts from the start of the step.
"""

import numpy as np

from eagleray.watchdog.frame import PHASE_CODE, Bools, Floats, Ints
from eagleray.watchdog.simulator.faults import FAULTS, OOM_PHASES, FaultPlan
from eagleray.watchdog.simulator.jobs import EVENT_RATES, WORK_PHASES, Jobs, draw
from eagleray.watchdog.simulator.ranges import Ranges

WORK_CODES = tuple(PHASE_CODE[phase] for phase in WORK_PHASES)
COLLECTIVE, OPTIMIZER = PHASE_CODE["collective"], PHASE_CODE["optimizer"]
EVENTS = tuple(EVENT_RATES)
SCHEDULED = ("compile", "checkpoint", "evaluate")
DATA, FORWARD, BACKWARD = 0, 2, 3
"""Places in the work of a step."""


class Timeline:
    """The state of a batch of jobs; `advance` moves all by one second."""

    def __init__(self, jobs: Jobs, plan: FaultPlan, ranges: Ranges, rng: np.random.Generator):
        self._jobs, self._plan, self._ranges, self._rng = jobs, plan, ranges, rng
        count, ranks = jobs.count, jobs.ranks
        self.time_s = 0.0
        self.step_J = np.zeros(count)
        self.elapsed_J = np.zeros(count)
        self.stepped_at_s_J = np.full(count, np.nan)
        self.waited_s_JR = np.zeros((count, ranks))
        self.data_s_JR = np.zeros((count, ranks))
        self.slow_JR = np.ones((count, ranks))
        """Factor on the work of ranks that are slow for a while."""
        self.fault_at_s_J = np.full(count, np.inf)
        self.frozen_at_JR = np.full((count, ranks), np.inf)
        self.stuck_optimizer_J = np.zeros(count, dtype=bool)
        self._work_JR = np.ones((count, ranks))
        self._insert_JR = np.zeros((count, ranks))
        self._label_J = np.zeros(count, dtype=np.int64)
        self._place_J = np.zeros(count, dtype=np.int64)
        self._comm_J = np.zeros(count)
        self._cut_J4 = np.concatenate([np.zeros((count, 1)), np.cumsum(jobs.share_J4, axis=1)[:, :3]], axis=1)
        self._rank_axis = np.arange(ranks)
        self._begin_steps(np.arange(count))

    def advance(self) -> None:
        """One second passes."""
        jobs = self._jobs
        self.time_s += 1.0
        self.elapsed_J += 1.0
        sync_J = (self._work_JR + self._insert_JR).max(axis=1)
        sync_J[np.isfinite(self.frozen_at_JR).any(axis=1)] = np.inf
        total_J = sync_J + self._comm_J + jobs.optimizer_s_J
        rows = np.flatnonzero(self.elapsed_J >= total_J)
        if not len(rows):
            return
        arrive_JR = self._work_JR[rows] + self._insert_JR[rows]
        usual_J = self._work_JR[rows].max(axis=1) + jobs.comm_s_J[rows] + jobs.optimizer_s_J[rows]
        over_J = self.elapsed_J[rows] - total_J[rows]
        more_J = np.floor(over_J / usual_J)
        waited_JR = (sync_J[rows] + self._comm_J[rows])[:, None] - arrive_JR
        usual_wait_JR = self._work_JR[rows].max(axis=1, keepdims=True) - self._work_JR[rows]
        self.waited_s_JR[rows] += waited_JR + more_J[:, None] * (usual_wait_JR + jobs.comm_s_J[rows, None])
        loading_J = (self._place_J[rows] == DATA) & (self._label_J[rows] == WORK_CODES[DATA])
        usual_data_JR = self._work_JR[rows] * jobs.share_J4[rows, :1]
        self.data_s_JR[rows] += usual_data_JR * (1 + more_J[:, None])
        self.data_s_JR[rows] += self._insert_JR[rows] * loading_J[:, None]
        self.step_J[rows] += 1 + more_J
        self.elapsed_J[rows] = over_J - more_J * usual_J
        self.stepped_at_s_J[rows] = self.time_s - self.elapsed_J[rows]
        self._begin_steps(rows)

    def phases(self) -> tuple[Ints, Floats, Floats]:
        """Phase code, seconds since the last sign of life, and exchanges entered, of every rank."""
        seen_JR = np.minimum(self.elapsed_J[:, None], self.frozen_at_JR)
        phase_JR = np.full(seen_JR.shape, WORK_CODES[DATA], dtype=np.int8)
        began_JR = np.zeros(seen_JR.shape)
        for place, code in enumerate(WORK_CODES):
            begin_JR = self._work_JR * self._cut_J4[:, place, None]
            begin_JR += self._insert_JR * (self._place_J <= place)[:, None]
            _move(phase_JR, began_JR, seen_JR, begin_JR, code)
        rows = np.flatnonzero(self._insert_JR.any(axis=1))
        if len(rows):
            phase_JR[rows], began_JR[rows] = self._inserted(rows, seen_JR, phase_JR, began_JR)
        arrive_JR = self._work_JR + self._insert_JR
        _move(phase_JR, began_JR, seen_JR, arrive_JR, COLLECTIVE)
        collectives_JR = self.step_J[:, None] + (seen_JR >= arrive_JR)
        done_J = arrive_JR.max(axis=1) + self._comm_J
        done_J[np.isfinite(self.frozen_at_JR).any(axis=1)] = np.inf
        _move(phase_JR, began_JR, seen_JR, done_J[:, None], OPTIMIZER)
        rows = np.flatnonzero(self.stuck_optimizer_J)
        phase_JR[rows, self._plan.culprit_J[rows]] = OPTIMIZER
        age_JR = self.elapsed_J[:, None] - began_JR
        # An evaluation that says how far it is does so every few seconds.
        telling_JR = (phase_JR == PHASE_CODE["evaluate"]) & self._jobs.pulses_J[:, None]
        age_JR = np.where(telling_JR & np.isinf(self.frozen_at_JR), age_JR % 10.0, age_JR)
        return phase_JR, age_JR, collectives_JR

    def _inserted(self, rows: Ints, seen_JR: Floats, phase_JR: Ints, began_JR: Floats) -> tuple[Ints, Floats]:
        begin_JR = self._work_JR[rows] * np.take_along_axis(self._cut_J4[rows], self._place_J[rows, None], 1)
        inside_JR = (seen_JR[rows] >= begin_JR) & (seen_JR[rows] < begin_JR + self._insert_JR[rows])
        phase_JR = np.where(inside_JR, self._label_J[rows, None], phase_JR[rows]).astype(np.int8)
        return phase_JR, np.where(inside_JR, begin_JR, began_JR[rows])

    def _begin_steps(self, rows: Ints) -> None:
        jobs = self._jobs
        noise_JR = 1 + jobs.spread_J[rows, None] * self._rng.standard_normal((len(rows), jobs.ranks))
        self._work_JR[rows] = jobs.work_s_J[rows, None] * np.maximum(noise_JR, 0.3) * self.slow_JR[rows]
        self._insert_JR[rows] = 0.0
        self._label_J[rows] = -1
        self._place_J[rows] = 0
        self._comm_J[rows] = jobs.comm_s_J[rows]
        started_s_J = self.time_s - self.elapsed_J[rows]
        for job in rows[started_s_J >= self._plan.earliest_s_J[rows]]:
            self._apply_fault(int(job), float(self.time_s - self.elapsed_J[job]))
        for job in rows[self.step_J[rows] < 2]:
            if np.isinf(self.fault_at_s_J[job]):
                self._start_up(int(job))
        healthy = rows[np.isinf(self.fault_at_s_J[rows]) & (self.step_J[rows] >= 2)]
        step_s_J = jobs.work_s_J[healthy] + jobs.comm_s_J[healthy] + jobs.optimizer_s_J[healthy]
        span_s_J = np.maximum(step_s_J, 1.0)
        chance_EJ = np.stack([jobs.rate_per_s[event][healthy] * span_s_J for event in EVENTS])
        happens_EJ = self._rng.random(chance_EJ.shape) < chance_EJ
        # Of several in one step, the first is taken: a step has room for one.
        for index in np.flatnonzero(happens_EJ.any(axis=0)):
            self._apply_event(int(healthy[index]), EVENTS[happens_EJ[:, index].argmax()])

    def _start_up(self, job: int) -> None:
        """The first step begins with the start of the processes, the second compiles."""
        first = self.step_J[job] == 0
        bounds = self._ranges.init_s if first else self._ranges.first_compile_s
        label, place = ("init", DATA) if first else ("compile", FORWARD)
        self._pause(job, label, place, float(draw(self._rng, bounds, 1, log=True)[0]), self._rank_axis)

    def _apply_event(self, job: int, event: str) -> None:
        rng, ranges = self._rng, self._ranges
        field = {"compile": "recompile_s"}.get(event, f"{event}_s")
        pause_s = float(draw(rng, getattr(ranges, field), 1, log=True)[0])
        if event == "flap":
            self._comm_J[job] += pause_s
            return
        everyone = event == "evaluate" or (event == "checkpoint" and self._jobs.all_ranks_save_J[job])
        if event in ("compile", "data_stall"):
            everyone = rng.random() < 0.5
        alone = 0 if event == "checkpoint" else rng.integers(0, self._jobs.ranks)
        affected = self._rank_axis if everyone else np.array([alone])
        place = FORWARD if event == "compile" else DATA
        if event == "hiccup":
            place = int(rng.choice([FORWARD, BACKWARD]))
        label = {"data_stall": "data", "hiccup": WORK_PHASES[place]}.get(event, event)
        self._pause(job, label, place, pause_s, affected)

    def _pause(self, job: int, label: str, place: int, pause_s: float, affected: Ints) -> None:
        self._label_J[job] = PHASE_CODE[label]
        self._place_J[job] = place
        lengths = pause_s * self._rng.uniform(0.97, 1.03, len(affected))
        self._insert_JR[job, affected] = lengths

    def _apply_fault(self, job: int, started_s: float) -> None:
        """Let this step carry the job's fault; slow faults are carried by every step from now on."""
        rng, culprit = self._rng, int(self._plan.culprit_J[job])
        fault = FAULTS[self._plan.fault_J[job]]
        work_s = float(self._work_JR[job, culprit])
        offset_s = 0.0
        if fault == "equal_hang":
            offset_s = float(self._work_JR[job].max())
            self._comm_J[job] = np.inf
        elif fault == "straggler":
            factor = draw(rng, self._ranges.straggler_ratio, 1, log=True)[0]
            if np.isinf(self.fault_at_s_J[job]):
                self.slow_JR[job] = 1.0
                self.slow_JR[job, culprit] = factor
            self._work_JR[job, culprit] = self._jobs.work_s_J[job] * self.slow_JR[job, culprit]
        elif fault == "data_slow":
            step_s = float(self._jobs.work_s_J[job] + self._jobs.comm_s_J[job])
            extra_s = step_s * float(draw(rng, self._ranges.data_slow_ratio, 1, log=True)[0])
            self._pause(job, "data", DATA, extra_s, np.array([culprit]))
        else:
            offset_s = self._freeze(job, culprit, fault, work_s)
        if np.isinf(self.fault_at_s_J[job]):
            self.fault_at_s_J[job] = started_s + offset_s

    def _freeze(self, job: int, culprit: int, fault: str, work_s: float) -> float:
        rng = self._rng
        if fault == "oom_hang":
            where = OOM_PHASES[self._plan.oom_phase_J[job]]
            if where == "optimizer":
                self.stuck_optimizer_J[job] = True
                offset_s = 0.0
            elif where == "work":
                offset_s = rng.uniform(0.0, work_s)
            else:
                field = {"compile": "recompile_s"}.get(where, f"{where}_s")
                pause_s = float(draw(rng, getattr(self._ranges, field), 1, log=True)[0])
                place = FORWARD if where == "compile" else DATA
                self._pause(job, where, place, pause_s, self._rank_axis)
                before_s = work_s * self._cut_J4[job, place]
                offset_s = before_s + rng.uniform(0.0, self._insert_JR[job, culprit])
        elif fault == "data_block":
            offset_s = 0.0
        elif fault == "desync_hang":
            offset_s = work_s * (1 - 1e-6)
        else:
            offset_s = rng.uniform(0.0, work_s)
        self.frozen_at_JR[job, culprit] = offset_s
        return float(offset_s)


def _move(phase_JR: Ints, began_JR: Floats, seen_JR: Floats, begin_JR: Floats, code: int) -> None:
    """Put the ranks that have reached `begin_JR` into a phase that began there."""
    reached_JR: Bools = seen_JR >= begin_JR
    np.copyto(phase_JR, np.int8(code), where=reached_JR)
    np.copyto(began_JR, begin_JR, where=reached_JR)
