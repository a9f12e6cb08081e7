"""What machine and NCCL say at the time of a verdict: files to keep as they come."""

import os
import shutil
import subprocess
import time
from pathlib import Path

QUERY_TIMEOUT_S = 20.0
FLIGHT_WAIT_S = 5.0
"""NCCL's monitor looks at its pipe once a second."""
PIPE_SUFFIX = ".pipe"


def flight_stem(folder: Path) -> Path:
    """What the flight recorder's files begin with; NCCL appends the rank, and `.pipe` to its pipe.

    Beside the folder of heartbeats, not inside: NCCL opens its pipe before any rank can make the folder.
    """
    return folder.with_name(f"{folder.name}.nccl-")


def flight_files(folder: Path) -> list[Path]:
    """Records and pipes that belong to a folder of heartbeats."""
    stem = flight_stem(folder)
    return sorted(stem.parent.glob(f"{stem.name}*"))


def flight_records(folder: Path) -> dict[str, bytes]:
    """Ask NCCL's flight recorder for its records of every rank of this machine; those that came in time."""
    asked = sum(_ask_for_records(path) for path in flight_files(folder) if path.suffix == PIPE_SUFFIX)
    deadline_s = time.monotonic() + FLIGHT_WAIT_S
    while len(records := _records(folder)) < asked and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return {path.name.removeprefix(f"{folder.name}."): path.read_bytes() for path in records}


def device_snapshot() -> str | None:
    """What `nvidia-smi` says now; None where there is none."""
    return _said("nvidia-smi", "-q")


def ras_report() -> str | None:
    """What NCCL's RAS knows of all ranks, asked on one machine; None where there is no `ncclras`."""
    return _said("ncclras", "-v")


def _records(folder: Path) -> list[Path]:
    return [path for path in flight_files(folder) if path.suffix != PIPE_SUFFIX and path.stat().st_size]


def _ask_for_records(pipe: Path) -> bool:
    """Write to a pipe; False when nobody reads it any more."""
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    os.write(descriptor, b"1\n")
    os.close(descriptor)
    return True


def _said(name: str, *arguments: str) -> str | None:
    program = shutil.which(name)
    if program is None:
        return None
    try:
        result = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{name} did not answer within {QUERY_TIMEOUT_S:g} s\n"
    return result.stdout or result.stderr
