"""What a person sees of a job: progress while it runs, one paragraph when it fails.

On a terminal, one live bar per stage; elsewhere (a job log, CI) a line at most every
`LINE_EVERY_S` seconds and one at the end of each stage.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from eagleray.errors import EagleRayError
from eagleray.monitoring.progress import Progress as StageProgress
from eagleray.monitoring.progress import ProgressListener

LINE_EVERY_S = 10.0
LOG_WIDTH = 120
INTERRUPTED_EXIT_CODE = 130


def run(job: Callable[[ProgressListener, Console], None]) -> None:
    """Run a job with progress; an error that a person can mend becomes a paragraph and an exit code."""

    def with_progress(out: Console) -> None:
        with progress_listener(out) as listener:
            job(listener, out)

    run_bare(with_progress)


def run_bare(job: Callable[[Console], None]) -> None:
    """As `run`, for a job that shows its progress itself."""
    # A log has no width of its own; 80 columns would cut the tables.
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else LOG_WIDTH)
    try:
        job(console)
    except EagleRayError as error:
        print(f"\n{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("\nInterrupted. Nothing finished is lost: the same command continues.", file=sys.stderr)
        sys.exit(INTERRUPTED_EXIT_CODE)


@contextmanager
def progress_listener(console: Console) -> Iterator[ProgressListener]:
    """A listener that draws bars on a terminal and prints lines elsewhere."""
    if not console.is_terminal:
        yield LinePrinter(console)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<18}"),
        BarColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=console, refresh_per_second=4) as bars:
        tasks: dict[str, TaskID] = {}

        def draw(progress: StageProgress) -> None:
            if progress.stage not in tasks:
                tasks[progress.stage] = bars.add_task(progress.stage, text="")
            bars.update(
                tasks[progress.stage], total=progress.total, completed=progress.done, text=describe(progress)
            )

        yield draw


class LinePrinter:
    """Prints progress as plain lines, sparingly."""

    def __init__(self, console: Console):
        self._console = console
        self._last_s: dict[str, float] = {}

    def __call__(self, progress: StageProgress) -> None:
        now_s = time.monotonic()
        ended = progress.done >= progress.total
        if not ended and now_s - self._last_s.get(progress.stage, -LINE_EVERY_S) < LINE_EVERY_S:
            return
        self._last_s[progress.stage] = now_s
        self._console.print(f"[{progress.stage}] {describe(progress)}", markup=False)


def describe(progress: StageProgress) -> str:
    """Progress in words: how much, how fast, how long still."""
    words = [f"{progress.done:,.0f}/{progress.total:,.0f} {progress.unit}"]
    if progress.rate_per_s > 0:
        words.append(f"{progress.rate_per_s:,.1f} {progress.unit}/s")
    if progress.done < progress.total and progress.left_s is not None:
        words.append(f"{clock(progress.left_s)} left")
    else:
        words.append(f"{clock(progress.elapsed_s)} elapsed")
    if progress.detail:
        words.append(progress.detail)
    return "  ".join(words)


def clock(seconds: float) -> str:
    """Seconds as m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
