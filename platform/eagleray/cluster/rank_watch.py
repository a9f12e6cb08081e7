"""What a training worker does to be watched: its heartbeat, its stacks on demand, its last words."""

import faulthandler
import json
import threading
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from eagleray.errors import EagleRayError
from eagleray.files import write_json_atomically
from eagleray.watchdog.heartbeat import Heartbeat, HeartbeatFile, NoHeartbeat
from eagleray.watchdog.stacks import DUMP_SIGNAL, stack_file

ALLOCATOR_PERIOD_S = 1.0
LAST_WORDS = "last-words"
"""Folder beside the checkpoints in which ranks that fail say why."""


class Watched:
    """Keeps a rank's heartbeat for the length of a block; of a failure it leaves the reason in `run`.

    Args:
        folder: Where heartbeats lie on this machine; None: nobody watches.
    """

    def __init__(self, folder: Path | None, run: Path, rank: int, device: torch.device):
        self._run = run
        self._rank = rank
        self._heartbeat = NoHeartbeat() if folder is None else _open_heartbeat(folder, rank, device)

    def __enter__(self) -> Heartbeat:
        return self._heartbeat

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            if is_out_of_memory(error):
                self._heartbeat.count_oom()
            _write_last_words(self._run, self._rank, error)
            if is_of_a_peer(error):
                # The failure is another rank's; to say that this one has finished would clear that one.
                return
        self._heartbeat.finish()


def is_out_of_memory(error: BaseException) -> bool:
    """An allocation failed, on a device or in the process."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def is_of_a_peer(error: BaseException) -> bool:
    """An exchange broke, which is what the others see of a rank that has died."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and "gloo" in str(error)


def _open_heartbeat(folder: Path, rank: int, device: torch.device) -> HeartbeatFile:
    folder.mkdir(parents=True, exist_ok=True)
    # Kept open for the life of the process: a handler writes to it at any time.
    faulthandler.register(DUMP_SIGNAL, file=stack_file(folder, rank).open("w"), all_threads=True)
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else None
    started_s = psutil.Process().create_time()
    heartbeat = HeartbeatFile(folder, rank, started_s=started_s, device_uuid=uuid)
    if device.type == "cuda":
        # A thread of its own, because what matters is said while the loop hangs.
        threading.Thread(target=_tell_allocator, args=(heartbeat, device), daemon=True).start()
    return heartbeat


def _tell_allocator(heartbeat: HeartbeatFile, device: torch.device) -> None:
    pause = threading.Event()
    while not pause.wait(ALLOCATOR_PERIOD_S):
        counters = torch.cuda.memory_stats(device)
        heartbeat.tell_allocator(
            ooms=counters.get("num_ooms", 0),
            retries=counters.get("num_alloc_retries", 0),
            reserved_bytes=counters.get("reserved_bytes.all.current", 0),
            peak_bytes=counters.get("allocated_bytes.all.peak", 0),
        )


def _write_last_words(run: Path, rank: int, error: BaseException) -> None:
    words = {
        "error": type(error).__name__,
        "message": str(error),
        "ours": isinstance(error, EagleRayError),
        "out_of_memory": is_out_of_memory(error),
        "of_a_peer": is_of_a_peer(error),
    }
    write_json_atomically(run / LAST_WORDS / f"{rank}.json", words)


def read_last_words(run: Path) -> dict[int, dict[str, str | bool]]:
    """What ranks said before they failed, by rank."""
    return {int(path.stem): json.loads(path.read_text()) for path in (run / LAST_WORDS).glob("[0-9]*.json")}
