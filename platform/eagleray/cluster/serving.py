"""Ray Serve around a service: one deployment for an engine, and applications side by side from one file."""

import threading
import time
from collections.abc import Iterable
from typing import Any

import ray.serve as serve
from ray.serve import Application
from starlette.applications import Starlette

from eagleray.cluster.own_gpus import hide_other_gpus
from eagleray.errors import ClusterError, EngineError
from eagleray.monitoring.catalogue import SERVING
from eagleray.monitoring.ray_metrics import RayMetrics
from eagleray.serving.config import ServeConfig, SwapConfig
from eagleray.serving.drafts import require_folder
from eagleray.serving.file import HttpConfig
from eagleray.serving.gauges import Telling
from eagleray.serving.http import build_http
from eagleray.serving.opening import open_service
from eagleray.settings import validate

TELL_EVERY_S = 2.0
"""Seconds between two tellings of the metrics."""


@serve.deployment(health_check_period_s=10, health_check_timeout_s=30, graceful_shutdown_timeout_s=20)
@serve.ingress()
class EngineReplica:
    """Gives one service a process and Serve's HTTP."""

    def __init__(self, config: ServeConfig):
        hide_other_gpus()
        self.service = open_service(config)
        context = serve.get_replica_context()
        tags = {"application": context.app_name, "replica": context.replica_tag}
        self._telling = Telling(self.service, RayMetrics(SERVING), tags)
        threading.Thread(target=self._tell, name="metrics", daemon=True).start()

    def __serve_build_asgi_app__(self) -> Starlette:
        """Serve hands every request to this."""
        return build_http(self.service)

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Serve calls this when `user_config` of a deployment changes: another `draft` is swapped in.

        Raises:
            ConfigError: It holds something else.
        """
        await self.service.swap(validate(SwapConfig, user_config, "user_config").draft)

    def __del__(self) -> None:
        """Serve calls this before it ends a replica. One that is killed leaves nothing running either: see
        `engines/guard.py`."""
        if service := getattr(self, "service", None):
            service.close()

    def _tell(self) -> None:
        while True:
            self._telling.tell()
            time.sleep(TELL_EVERY_S)

    def check_health(self) -> None:
        """Serve replaces a replica for which this raises."""
        health = self.service.health
        if not health.serves:
            raise EngineError(f"The engine is {health.status}: {health.reason}.")


def application(config: ServeConfig) -> Application:
    """Bind the deployment to settings.

    Raises:
        ArtifactError: The drafter's folder does not exist; said before a replica loads a target in vain.
    """
    require_folder(config.draft)
    replicas = config.replicas
    answers = config.engine.concurrency + config.limits.max_queued_requests
    scaling: dict[str, Any] = {"num_replicas": replicas.min}
    if replicas.max > replicas.min:
        scaling = {
            "autoscaling_config": {
                "min_replicas": replicas.min,
                "max_replicas": replicas.max,
                "target_ongoing_requests": config.engine.concurrency,
            }
        }
    deployment: Any = EngineReplica
    bound: Application = deployment.options(
        # The service refuses what is too much for it, with a reason; Serve's own queue would only hide it.
        max_ongoing_requests=16 * answers,
        ray_actor_options={"num_cpus": replicas.num_cpus, "num_gpus": replicas.num_gpus},
        **scaling,
    ).bind(config)
    return bound


def start_applications(http: HttpConfig, applications: Iterable[tuple[str, str, Application]]) -> None:
    """Serve applications on the Ray that this process has joined; returns once all of them answer.

    Args:
        applications: Name, route prefix and application.

    Raises:
        ClusterError: One did not come up; the message has Serve's own words.
    """
    serve.start(http_options={"host": http.host, "port": http.port}, proxy_location="HeadOnly")
    targets = [
        serve.RunTarget(target=target, name=name, route_prefix=route) for name, route, target in applications
    ]
    try:
        serve.run_many(targets)
    except RuntimeError as error:
        raise ClusterError(f"An application did not come up: {error}") from error


def stop_applications() -> None:
    """Stop serving, and every replica."""
    serve.shutdown()
