"""With how many workers an attempt runs: a pure decision, taken anew before each."""

from dataclasses import dataclass

from eagleray.training.config import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class Wait:
    """There is too little room, and there may be more soon."""

    why: str


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """There is too little room, and it was waited for long enough."""

    why: str


def choose_workers(training: TrainingConfig, room: int, waited_s: float) -> int | Wait | GiveUp:
    """All workers where there is room for them; fewer once it was waited for, down to `min_workers`.

    Args:
        room: Workers that the machines which are there can hold.
        waited_s: Seconds since the attempt could have begun.
    """
    if room >= training.workers:
        return training.workers
    least = training.min_workers or training.workers
    told = f"the machines that are left have room for {room} of {training.workers} workers"
    if waited_s < training.wait_for_machines_s:
        return Wait(why=told)
    fewer = largest_share(training.global_batch_size, room)
    if fewer >= least:
        return fewer
    return GiveUp(
        why=f"{told}, and nothing came for {waited_s:.0f} s (training.wait_for_machines_s). At least {least} "
        "are needed (training.min_workers). Add machines, or lower min_workers, and start the same command "
        "again: it goes on from the newest checkpoint."
    )


def largest_share(global_batch_size: int, most: int) -> int:
    """The largest number of workers up to `most` that share a global batch evenly; 0 if `most` is."""
    return max((count for count in range(1, most + 1) if global_batch_size % count == 0), default=0)
