"""What Ray Serve imports: the applications of `serve run configs/serve/demo.yaml` name `serve.app:build`."""

from typing import Any

from ray.serve import Application

from eagleray.cluster.serving import application
from eagleray.serving.config import ServeConfig
from eagleray.settings import validate


def build(args: dict[str, Any]) -> Application:
    """Make an application from its `args`.

    Raises:
        ConfigError: An argument is unknown or out of range.
        ArtifactError: There is no drafter in the folder that is named.
    """
    return application(validate(ServeConfig, args, "args of serve.app:build"))
