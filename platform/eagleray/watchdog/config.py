"""When the watchdog warns and when it ends an attempt.

Nothing here is a watt or a byte: power, memory and pace are compared with this job's own healthy time and
with the other ranks. A warning costs a stack dump, an ended attempt costs the steps since the last
checkpoint, so a warning comes early and an end only after any pause that a healthy job is known to make.
"""

from pydantic import Field, model_validator

from eagleray.settings import Settings
from eagleray.watchdog.telemetry import Phase


class DetectorConfig(Settings):
    """Thresholds of the detector."""

    warn_after_s: float = Field(default=15.0, gt=0)
    """Seconds without a sign of life from any rank before a warning. Most standstills of healthy jobs
    (garbage collection, page faults, one repeated packet) are shorter."""

    warn_quiet_factor: float = Field(default=2.0, ge=1)
    """The warning also waits for this many times the job's own usual longest quiet time in a step."""

    end_after_s: float = Field(default=60.0, gt=0)
    """Seconds before the attempt is ended. NCCL repeats packets for up to about 40 s before it gives up;
    NVRx ends a process at 60 s; PyTorch's two minutes killed healthy jobs because they knew no phases."""

    end_quiet_factor: float = Field(default=5.0, ge=1)
    """The end also waits for this many times the usual quiet time; NVRx uses the same safety factor."""

    end_after_working_s: float = Field(default=300.0, gt=0)
    """Seconds before the end when a rank that the others wait for draws power as it does at work: it may
    be working. Some devices show full power when stuck, so the wait is bounded."""

    end_after_blind_s: float = Field(default=900.0, gt=0)
    """Seconds before the end when a rank has not been heard of: it may be in an announced pause."""

    oom_warn_after_s: float = Field(default=8.0, gt=0)
    """Seconds before a warning when an allocation has failed since the rank's last sign of life."""

    data_warn_after_s: float = Field(default=20.0, gt=0)
    """Seconds before a warning when ranks wait for data."""

    data_end_after_s: float = Field(default=300.0, gt=0)
    """Seconds before the end when ranks wait for data: remote storage stalls for minutes and comes back.
    HyperPod takes 300 s without a step for a hang."""

    stopped_end_after_s: float = Field(default=30.0, gt=0)
    """Seconds before the end when a process is held by a signal: it cannot come back by itself."""

    dead_after_records: int = Field(default=2, ge=1)
    """Readings in a row that find no process before a rank is dead."""

    ceiling_s: dict[Phase, float] = {"init": 1800, "compile": 1800, "checkpoint": 1800, "evaluate": 7200}
    """Seconds that a rank may be silent in a phase that is known to be long. Nobody is blamed for waiting
    for it meanwhile. DLRover allows two hours for first, evaluation and checkpoint steps."""

    first_steps: int = Field(default=5, ge=1)
    """Steps before the job's own pace is known: the first ones allocate, tune and compile."""

    first_warn_after_s: float = Field(default=45.0, gt=0)
    """Seconds without a sign of life before a warning in these steps."""

    first_end_after_s: float = Field(default=900.0, gt=0)
    """Seconds before the end in these steps."""

    no_step_s: float = Field(default=300.0, gt=0)
    """Seconds without an optimiser step outside announced pauses before the end, whatever signs of life
    there are: ranks may turn in circles."""

    no_step_factor: float = Field(default=5.0, ge=1)
    """The same as a multiple of the longest of the last 32 steps."""

    low_power_ratio: float = Field(default=0.45, gt=0, lt=1)
    """Power over the rank's own healthy mean below which it does nothing useful. Waiting GPUs were seen at
    10 to 25 % of their limit, working ones that are bound by memory at 22 to 71 %."""

    working_power_ratio: float = Field(default=0.75, gt=0, lt=1)
    """Power over the rank's own healthy mean above which it may be working."""

    memory_growth_ratio: float = Field(default=0.03, gt=0)
    """Growth of a rank's memory over its own mean, beyond the growth of its peers, that counts as
    asymmetric. Steps of healthy jobs vary by about a percent once the allocator's cache has filled."""

    straggler_ratio: float = Field(default=1.35, gt=1)
    """Work of one rank over the median of all, per step, that makes it a straggler. Sequences of unequal
    length make differences of a few percent, hot devices of up to a quarter."""

    straggler_excess: float = Field(default=1.0, gt=0)
    """Sum of these ratios, each less 1, over windows in a row with the same rank before the warning: three
    windows at the least ratio, two when a rank takes half as long again."""

    straggler_window_s: float = Field(default=5.0, gt=0)
    """Least length of a window; it is at least one step."""

    data_share_ratio: float = Field(default=0.6, gt=0, le=1)
    """Share of the time spent waiting for data, over all ranks, that is called starved."""

    lost_after_s: float = Field(default=20.0, gt=0)
    """Seconds without any word of a rank, or of a device that was heard before, before telemetry is lost."""

    @model_validator(mode="after")
    def _warns_before_it_ends(self) -> "DetectorConfig":
        for warn, end in (
            ("warn_after_s", "end_after_s"),
            ("data_warn_after_s", "data_end_after_s"),
            ("first_warn_after_s", "first_end_after_s"),
        ):
            if getattr(self, warn) > getattr(self, end):
                raise ValueError(f"{warn} {getattr(self, warn)} must not be above {end} {getattr(self, end)}")
        return self


class RecoveryConfig(Settings):
    """How often, and how soon, a run is taken up again."""

    attempts_in_place: int = Field(default=3, ge=1)
    """Attempts in a row that may end without a new checkpoint: a cause that comes back at once will come
    back for ever."""

    attempts: int = Field(default=20, ge=1)
    """Attempts in all."""

    backoff_s: float = Field(default=5.0, ge=0)
    """Seconds before the next attempt; doubled for every attempt in a row without a new checkpoint."""

    backoff_ceiling_s: float = Field(default=300.0, ge=0)
    """Longest wait."""


class WatchdogConfig(Settings):
    """The watchdog of a training."""

    enabled: bool = True
    """Watch the ranks from outside. Without it a hang lasts until a timeout of the exchange ends it."""

    poll_s: float = Field(default=1.0, gt=0, le=5)
    """Seconds between two looks at all ranks."""

    keep_s: int = Field(default=300, gt=0)
    """Seconds of records that an incident keeps."""

    detector: DetectorConfig = DetectorConfig()
    recovery: RecoveryConfig = RecoveryConfig()
