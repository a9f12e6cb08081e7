"""Which class is behind `training.backend`. A backend is imported when a run asks for it."""

from eagleray.drafters.base import TrainableDrafter
from eagleray.training.backends.base import Backend
from eagleray.training.config import TrainingConfig
from eagleray.watchdog.heartbeat import Heartbeat, NoHeartbeat


def open_backend(
    drafter: TrainableDrafter, config: TrainingConfig, heartbeat: Heartbeat | None = None
) -> Backend:
    """Put a drafter, the same on every rank, into the hands of the backend that the settings name.

    Args:
        heartbeat: Is told when this rank enters an exchange in which it may wait for others.
    """
    heartbeat = heartbeat or NoHeartbeat()
    if config.backend == "fsdp":
        from eagleray.training.backends.fsdp import ShardedBackend

        return ShardedBackend(drafter, config, heartbeat)
    if config.backend == "deepspeed":
        from eagleray.training.backends.zero import ZeroBackend

        return ZeroBackend(drafter, config, heartbeat)
    from eagleray.training.backends.replicated import ReplicatedBackend

    return ReplicatedBackend(drafter, config, heartbeat)
