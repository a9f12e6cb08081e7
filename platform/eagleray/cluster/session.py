"""Getting a Ray to work on: the one an address names, else a local one for this process."""

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from eagleray.errors import ClusterError

LOCAL_ENVIRONMENT = {
    # Without these, behaviour depends on a token file that an earlier Ray may have left in $HOME.
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Workers at nice 15 lose their core to every other process of a laptop some hundred times a second.
    "RAY_worker_niceness": "0",
}

QUIET: dict[str, Any] = {"logging_level": logging.WARNING, "log_to_driver": False}
"""Progress and errors reach the driver by themselves; the rest stays in Ray's log files of each worker."""


@contextlib.contextmanager
def ray_session(min_cpus: int) -> Iterator[None]:
    """Connect to Ray for the length of the block.

    With `RAY_ADDRESS` set (as `ray job submit` does) the block joins that cluster and leaves it
    running. Otherwise a local Ray is started and stopped, with at least `min_cpus` logical CPUs so
    that a small machine runs every stage, if slowly.

    Raises:
        ClusterError: The named cluster cannot be reached, or has too few CPUs for the recipe.
    """
    for name, value in LOCAL_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    address = os.environ.get("RAY_ADDRESS")
    try:
        if address:
            ray.init(**QUIET)
        else:
            cpus = max(len(os.sched_getaffinity(0)), min_cpus)
            # A dashboard would take a share of a laptop's cores; a cluster started by hand has one.
            ray.init("local", num_cpus=cpus, include_dashboard=False, **QUIET)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(
            f"Could not connect to Ray at {address or 'this machine'}: {error}. "
            "Check RAY_ADDRESS, or unset it to use a local Ray."
        ) from error
    try:
        available = ray.cluster_resources().get("CPU", 0)
        if available < min_cpus:
            raise ClusterError(
                f"The recipe needs {min_cpus} CPUs at once, the cluster has {available:g}. "
                "Lower distil.workers, training.workers or evaluation.workers, or add nodes."
            )
        yield
    finally:
        ray.shutdown()


def describe_cluster() -> str:
    """Which Ray jobs would use: the cluster that `RAY_ADDRESS` names, with what it has, or a local one.

    Raises:
        ClusterError: The named cluster cannot be reached.
    """
    import ray

    if not os.environ.get("RAY_ADDRESS"):
        return f"Ray {ray.__version__}; RAY_ADDRESS is not set, so jobs start one of their own"
    with ray_session(0):
        nodes = [node for node in ray.nodes() if node["Alive"]]
        resources = ray.cluster_resources()
        cpus, gpus = (resources.get(name, 0) for name in ("CPU", "GPU"))
        return f"Ray {ray.__version__} with {len(nodes)} nodes, {cpus:g} CPUs, {gpus:g} GPUs"
