"""What a person sees of a training while it runs, from what its first rank logs."""

import threading

from eagleray.monitoring.progress import ProgressListener, ProgressMeter
from eagleray.training.live_figures import words
from eagleray.training.metrics_log import MetricsLog

POLL_S = 0.5


class ProgressWatch:
    """Follows the metrics log of a training in a thread and tells a listener."""

    def __init__(self, log: MetricsLog, stage: str, listener: ProgressListener):
        self._log = log
        self._stage = stage
        self._listener = listener
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> "ProgressWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        done_before = len(self._log.read())
        meter: ProgressMeter | None = None
        told = -1.0
        while not self._ended.wait(POLL_S):
            steps = self._log.read()
            if not steps or steps[-1]["step"] == told:
                continue
            newest = steps[-1]
            told = newest["step"]
            if meter is None:
                meter = ProgressMeter(
                    self._stage, newest["total_steps"], "steps", self._listener, done_before
                )
            meter.reach(told, words(steps))
