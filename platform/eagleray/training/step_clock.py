"""Where the time of a step goes, phase by phase, from what a rank tells its heartbeat anyway.

On GPUs the phases of one micro-batch run into each other, because kernels are only queued; the loop waits
for each micro-batch's loss, so that a step as a whole, and its data and its exchanges, are told apart.
"""

import time
from collections.abc import Callable

from eagleray.watchdog.heartbeat import Heartbeat
from eagleray.watchdog.telemetry import Phase

STEP_PHASES: tuple[Phase, ...] = ("data", "target", "forward", "backward", "collective", "optimizer")
"""What a step is made of; checkpoints and trials lie between steps."""


class StepClock:
    """A heartbeat that passes everything on to another one, and adds up seconds.

    Gradients are exchanged in parts while later ones are still computed, so only what follows the last part
    is waiting: of several exchanges announced in a row the last one is the loop's own, and the one before it
    the last part.
    """

    def __init__(self, heartbeat: Heartbeat, now_s: Callable[[], float] = time.perf_counter):
        self._heartbeat = heartbeat
        self._now_s = now_s
        self._spent_s: dict[Phase, float] = {}
        self._phase: Phase | None = None
        self._since_s = now_s()
        self._exchanges_s: list[float] = []

    def split(self) -> dict[Phase, float]:
        """Seconds of each phase since the last call; phases that did not occur are absent."""
        self._close()
        spent_s, self._spent_s = self._spent_s, {}
        return spent_s

    def enter(self, phase: Phase) -> None:
        """End the phase before."""
        self._close()
        self._phase = phase
        self._heartbeat.enter(phase)

    def enter_collective(self) -> None:
        """Remember when."""
        self._exchanges_s.append(self._now_s())
        self._heartbeat.enter_collective()

    def pulse(self) -> None:
        """Pass on."""
        self._heartbeat.pulse()

    def stepped(self, step: int) -> None:
        """Pass on, after the last phase of the step."""
        self._close()
        self._phase = None
        self._heartbeat.stepped(step)

    def count_oom(self) -> None:
        """Pass on."""
        self._heartbeat.count_oom()

    def finish(self) -> None:
        """Pass on."""
        self._heartbeat.finish()

    def _close(self) -> None:
        now_s = self._now_s()
        if self._exchanges_s:
            waiting_since_s = self._exchanges_s[-2:][0]
            self._add("collective", now_s - waiting_since_s)
            self._add(self._phase, waiting_since_s - self._since_s)
            self._exchanges_s.clear()
        else:
            self._add(self._phase, now_s - self._since_s)
        self._since_s = now_s

    def _add(self, phase: Phase | None, seconds: float) -> None:
        if phase is not None:
            self._spent_s[phase] = self._spent_s.get(phase, 0.0) + seconds
