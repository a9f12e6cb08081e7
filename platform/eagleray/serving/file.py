"""The file that `serve run` and `make serve` read: where to listen, and the applications."""

from typing import Literal

from pydantic import Field, model_validator

from eagleray.serving.config import ServeConfig
from eagleray.settings import Settings


class HttpConfig(Settings):
    """Where the endpoint listens."""

    host: str = "127.0.0.1"
    """Loopback unless said otherwise."""

    port: int = Field(default=8000, ge=1, le=65535)

    @property
    def loopback(self) -> bool:
        """Whether only processes of this machine can reach it."""
        return self.host in ("127.0.0.1", "localhost", "::1")


class ServedApplication(Settings):
    """One entry of a file that `serve run` reads."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    route_prefix: str = Field(pattern=r"^/[A-Za-z0-9_/-]*$")
    import_path: Literal["serve.app:build"] = "serve.app:build"
    args: ServeConfig = ServeConfig()


class ServeFile(Settings):
    """A file of applications, in the form of Ray Serve's own configuration files."""

    proxy_location: Literal["HeadOnly", "EveryNode"] = "HeadOnly"
    http_options: HttpConfig = HttpConfig()
    applications: tuple[ServedApplication, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _strangers_need_a_token(self) -> "ServeFile":
        if not self.http_options.loopback:
            for application in self.applications:
                if application.args.api_key_env is None:
                    raise ValueError(
                        f"http_options.host {self.http_options.host!r} lets other machines in, and the "
                        f"application {application.name!r} has no api_key_env; set it, or listen on 127.0.0.1"
                    )
        return self
