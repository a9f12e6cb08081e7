"""A batch of simulated jobs of one size: what telemetry would have shown of them, second by second.

Legend: `_J` jobs; `_JR` jobs by ranks; `_JP` jobs by phases.
"""

import numpy as np

from eagleray.watchdog.frame import NO_PHASE, PHASE_CODE, Floats, Frame, Ints
from eagleray.watchdog.simulator.faults import FAULTS, NO_FAULT, FaultPlan, no_faults
from eagleray.watchdog.simulator.jobs import CONDITION_RATES, Jobs, draw, draw_jobs
from eagleray.watchdog.simulator.ranges import Ranges
from eagleray.watchdog.simulator.timeline import COLLECTIVE, Timeline

CONDITIONS = tuple(CONDITION_RATES)
NODE_RANKS = 8
FULL_MEMORY = 0.985
"""Of the device, at the moment an allocation fails; the driver keeps the rest."""
MEMORY_NOISE = 0.003
RSS_BYTES = 6e9
POOL = 1 << 20
"""Random numbers drawn once and read from changing places: drawing them anew each second would be most of the
work."""


class Fleet:
    """Jobs that run, pause and fail; `tick` is one second of all of them."""

    def __init__(self, jobs: Jobs, plan: FaultPlan, ranges: Ranges, rng: np.random.Generator):
        self._jobs, self._plan, self._ranges, self._rng = jobs, plan, ranges, rng
        self._line = Timeline(jobs, plan, ranges, rng)
        count, ranks = jobs.count, jobs.ranks
        self._until_s = {condition: np.full(count, -1.0) for condition in CONDITIONS}
        self._lost_node_JR = np.zeros((count, ranks), dtype=bool)
        self._lost_device_JR = np.zeros((count, ranks), dtype=bool)
        self._caught_ooms_JR = np.zeros((count, ranks))
        self._spinning_J = rng.random(count) < 0.5
        """A frozen culprit spins in a kernel; otherwise its device idles."""
        kinds = plan.fault_J[:, None]
        moving = [FAULTS.index(name) for name in ("straggler", "data_slow")]
        equal_JR = kinds == FAULTS.index("equal_hang")
        self._spinning_J &= ~equal_JR[:, 0]
        self._at_rest_JR = ~np.isin(kinds, moving) & ~(equal_JR & ~plan.odd_one_J[:, None])
        """Faults that show in the culprit's device."""
        self._normal_pool = rng.standard_normal(POOL + count * ranks)
        self._uniform_pool = rng.random(POOL + count * ranks)
        self._rank_axis = np.arange(ranks)
        self._job_axis = np.arange(count)[:, None]
        self._culprit_JR = np.zeros((count, ranks), dtype=bool)
        failing = np.flatnonzero(plan.fault_J != NO_FAULT)
        self._culprit_JR[failing, plan.culprit_J[failing]] = True
        self._is = {name: kinds == FAULTS.index(name) for name in ("oom_hang", "dead_rank", "stopped")}

    @classmethod
    def healthy(cls, rng: np.random.Generator, ranges: Ranges, count: int, ranks: int) -> "Fleet":
        """Jobs in which nothing goes wrong for good."""
        return cls(draw_jobs(rng, ranges, count, ranks), no_faults(count), ranges, rng)

    @property
    def fault_at_s_J(self) -> Floats:
        """When each job's fault began; infinite before."""
        return self._line.fault_at_s_J

    def tick(self) -> Frame:
        """Let one second pass and read all ranks."""
        line, jobs = self._line, self._jobs
        line.advance()
        self._change_conditions()
        phase_JR, age_JR, collectives_JR = line.phases()
        frozen_JR = self._culprit_JR & (line.time_s >= line.fault_at_s_J)[:, None]
        power_JR, utilisation_JR = self._device(phase_JR, age_JR, frozen_JR & self._at_rest_JR)
        memory_JR, rss_JR = self._memory()
        step_JR = np.repeat(line.step_J[:, None], jobs.ranks, axis=1)
        step_JR -= self._culprit_JR & line.stuck_optimizer_J[:, None]
        step_age_JR = np.repeat((line.time_s - line.stepped_at_s_J)[:, None], jobs.ranks, axis=1)
        dead_JR = frozen_JR & self._is["dead_rank"]
        lost_JR = self._lost_node_JR & (line.time_s < self._until_s["node_loss"])[:, None]
        lost_JR |= self._noise(self._uniform_pool) < jobs.lost_record_J[:, None]
        unseen_JR = lost_JR | (self._lost_device_JR & (line.time_s < self._until_s["device_loss"])[:, None])
        unseen_JR |= ~jobs.has_device_J[:, None] | dead_JR
        ooms_JR = self._caught_ooms_JR + (frozen_JR & self._is["oom_hang"])
        uncounted_JR = lost_JR | ~jobs.has_counters_J[:, None]
        return Frame(
            time_s=np.full(jobs.count, line.time_s),
            step_R=_mask(step_JR, lost_JR),
            phase_R=np.where(lost_JR, np.int8(NO_PHASE), phase_JR),
            beat_age_s_R=_mask(age_JR, lost_JR),
            step_age_s_R=_mask(step_age_JR, lost_JR),
            collectives_R=_mask(collectives_JR, lost_JR),
            waited_s_R=_mask(line.waited_s_JR, lost_JR),
            data_s_R=_mask(line.data_s_JR, lost_JR),
            oom_count_R=_mask(ooms_JR, uncounted_JR),
            retry_count_R=_mask(2.0 * ooms_JR, uncounted_JR),
            finished_R=_mask(np.zeros_like(age_JR), lost_JR),
            alive_R=_mask(np.where(dead_JR, 0.0, 1.0), lost_JR),
            stopped_R=_mask((frozen_JR & self._is["stopped"]).astype(float), lost_JR | dead_JR),
            rss_bytes_R=_mask(rss_JR, lost_JR | dead_JR),
            used_bytes_R=_mask(memory_JR, unseen_JR),
            total_bytes_R=_mask(np.repeat(jobs.total_bytes_J[:, None], jobs.ranks, axis=1), unseen_JR),
            utilisation_R=_mask(utilisation_JR, unseen_JR),
            power_w_R=_mask(power_JR, unseen_JR),
        )

    def _device(self, phase_JR: Ints, age_JR: Floats, frozen_JR: np.ndarray) -> tuple[Floats, Floats]:
        jobs, time_s = self._jobs, self._line.time_s
        low_J = np.where(time_s < self._until_s["low_power"], jobs.low_power_ratio_J, 1.0)
        passing_JR = age_JR < 1.0  # the second saw several phases
        power_JR = np.where(
            passing_JR, jobs.mean_power_w_J[:, None], jobs.power_w_JP[self._job_axis, phase_JR]
        )
        used_JR = np.where(
            passing_JR, jobs.mean_utilisation_J[:, None], jobs.utilisation_JP[self._job_axis, phase_JR]
        )
        power_JR = power_JR * np.where(phase_JR == COLLECTIVE, 1.0, low_J[:, None])
        at_rest_JR = np.where(self._spinning_J[:, None], jobs.power_w_JP[:, COLLECTIVE, None], 0.0)
        at_rest_JR = np.where(at_rest_JR > 0, at_rest_JR, jobs.power_w_JP[:, PHASE_CODE["init"], None])
        power_JR = np.where(frozen_JR, at_rest_JR, power_JR)
        used_JR = np.where(frozen_JR, self._spinning_J[:, None].astype(float), used_JR)
        power_JR = np.where(jobs.frozen_counters_J[:, None], jobs.mean_power_w_J[:, None], power_JR)
        used_JR = np.where(jobs.frozen_counters_J[:, None], 1.0, used_JR)
        noise_JR = self._noise(self._normal_pool)
        return np.maximum(power_JR * (1 + jobs.power_noise_J[:, None] * noise_JR), 1.0), used_JR

    def _memory(self) -> tuple[Floats, Floats]:
        """Device memory and resident memory. The culprit of an OOM climbs to the limit and stays there."""
        jobs, plan, line = self._jobs, self._plan, self._line
        noise_JR = MEMORY_NOISE * self._noise(self._normal_pool)
        ratio_JR = jobs.memory_ratio_JR * (1 + noise_JR)
        rss_JR = RSS_BYTES * (1 + noise_JR)
        climbing = np.flatnonzero(self._is["oom_hang"][:, 0] & np.isfinite(line.fault_at_s_J))
        if len(climbing):
            culprits = plan.culprit_J[climbing]
            begun_s = line.fault_at_s_J[climbing] - plan.ramp_s_J[climbing]
            share = np.clip((line.time_s - begun_s) / plan.ramp_s_J[climbing], 0.0, 1.0)
            base = jobs.memory_ratio_JR[climbing, culprits]
            ratio_JR[climbing, culprits] = base + share * (FULL_MEMORY - base)
            rss_JR[climbing, culprits] = RSS_BYTES * (1 + share)
            alike = climbing[plan.invisible_oom_J[climbing]]
            ratio_JR[alike] = FULL_MEMORY * (1 - np.abs(noise_JR[alike]))
            rss_JR[alike] = RSS_BYTES
        return ratio_JR * jobs.total_bytes_J[:, None], rss_JR

    def _noise(self, pool: Floats) -> Floats:
        jobs, ranks = self._jobs.count, self._jobs.ranks
        start = self._rng.integers(0, POOL)
        return pool[start : start + jobs * ranks].reshape(jobs, ranks)

    def _change_conditions(self) -> None:
        jobs, rng, line = self._jobs, self._rng, self._line
        rates = np.stack([jobs.rate_per_s[name] for name in (*CONDITIONS, "caught_oom")])
        for index, job in np.argwhere(rng.random(rates.shape) < rates):
            if index == len(CONDITIONS):
                self._caught_ooms_JR[job, rng.integers(0, jobs.ranks)] += 1
                continue
            name = CONDITIONS[index]
            if name == "slow_rank" and np.isfinite(line.fault_at_s_J[job]):
                continue
            length_s = float(draw(rng, getattr(self._ranges, f"{name}_s"), 1, log=True)[0])
            self._until_s[name][job] = line.time_s + length_s
            node = self._rank_axis // NODE_RANKS == rng.integers(0, jobs.ranks) // NODE_RANKS
            if name == "node_loss":
                self._lost_node_JR[job] = node
            elif name == "device_loss":
                self._lost_device_JR[job] = node
            elif name == "slow_rank":
                line.slow_JR[job] = 1.0
                ratio = draw(rng, self._ranges.slow_rank_ratio, 1)[0]
                line.slow_JR[job, rng.integers(0, jobs.ranks)] = ratio
        ended = (self._until_s["slow_rank"] <= line.time_s) & (self._until_s["slow_rank"] > 0)
        ended &= np.isinf(line.fault_at_s_J)
        if ended.any():
            line.slow_JR[ended] = 1.0
            self._until_s["slow_rank"][ended] = -1.0


def _mask(values_JR: Floats, missing_JR: np.ndarray) -> Floats:
    return np.where(missing_JR, np.nan, values_JR)
