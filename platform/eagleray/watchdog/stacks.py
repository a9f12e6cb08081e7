"""Where every rank stands in its code, asked from outside while it hangs."""

import os
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

from eagleray.watchdog.heartbeat import RankProcess

PY_SPY_TIMEOUT_S = 20.0
DUMP_SIGNAL = signal.SIGUSR1
DUMP_WAIT_S = 2.0
SUFFIX = ".stacks"


def stack_file(folder: Path, rank: int) -> Path:
    """Where a rank that registered `DUMP_SIGNAL` with `faulthandler` writes its stacks."""
    return folder / f"{rank}{SUFFIX}"


def collect_stacks(processes: Sequence[RankProcess], folder: Path) -> dict[int, str]:
    """Stacks of ranks on this machine, by rank; what could not be read says why.

    py-spy reads them without holding the process, so that also a stopped one answers. Where it may not look
    (containers without ptrace), ranks are asked to dump their own stacks by a signal; that needs a process
    that can run its handler.

    Args:
        folder: Of the heartbeats.
    """
    spy = py_spy()
    return {process.rank: _stack(process, folder, spy) for process in processes}


def py_spy() -> str | None:
    """The program, beside this Python or on the path."""
    return shutil.which("py-spy", path=sysconfig.get_path("scripts")) or shutil.which("py-spy")


def _stack(process: RankProcess, folder: Path, spy: str | None) -> str:
    refusal = "py-spy is not installed"
    if spy is not None:
        try:
            result = subprocess.run(
                [spy, "dump", "--nonblocking", "--pid", str(process.pid)],
                capture_output=True,
                text=True,
                timeout=PY_SPY_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            refusal = f"py-spy did not answer within {PY_SPY_TIMEOUT_S:g} s"
        else:
            if result.returncode == 0:
                return result.stdout
            said = result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]
            refusal = f"py-spy: {said[0]}"
    return _ask_process(process, stack_file(folder, process.rank)) or f"No stacks. {refusal}\n"


def _ask_process(process: RankProcess, path: Path) -> str | None:
    """Send the dump signal, if the rank has said that it handles it: unhandled, it would kill the rank."""
    if not path.exists():
        return None
    size_before = path.stat().st_size
    try:
        os.kill(process.pid, DUMP_SIGNAL)
    except (ProcessLookupError, PermissionError) as error:
        return f"No stacks. {error}\n"
    deadline_s = time.monotonic() + DUMP_WAIT_S
    while time.monotonic() < deadline_s:
        if path.stat().st_size > size_before:
            time.sleep(0.1)  # let all threads be written
            with path.open(encoding="utf-8", errors="replace") as stream:
                stream.seek(size_before)
                return stream.read()
        time.sleep(0.02)
    return None
