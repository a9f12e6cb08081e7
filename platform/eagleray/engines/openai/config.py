"""Settings of an engine that is reached over HTTP."""

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from eagleray.settings import Settings


class OpenAIEngineConfig(Settings):
    """The engine section of a recipe, when a server with OpenAI's completions route runs the target.

    vLLM and SGLang give the emitted token ids. The text of any other server is tokenised again, which
    is not always what it emitted: the share of such answers is measured, reported and bounded.
    """

    name: Literal["openai"] = "openai"
    """Selects this engine."""

    url: str
    """`http://host:port`, with or without `/v1`."""

    model: str | None = None
    """Name under which the server serves the target. None: the only one it serves."""

    api_key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable that holds the API key; the key itself never stands in a recipe."""

    max_concurrency: int = Field(default=32, ge=1)
    """Requests that one process keeps at the server; the server batches them."""

    request_timeout_s: float = Field(default=600.0, gt=0)
    """Longest wait for one answer. After it no further try begins."""

    connect_timeout_s: float = Field(default=30.0, gt=0)
    """Longest wait for a connection, and for what the server says of itself."""

    max_retries: int = Field(default=6, ge=0)
    """Further tries of a request after a lost connection, no answer in time, HTTP 429 or 5xx."""

    first_retry_wait_s: float = Field(default=1.0, gt=0)
    """Wait before the first retry; each further one is twice as long, and shortened by a random part."""

    longest_retry_wait_s: float = Field(default=60.0, gt=0)
    """Longest wait before a retry, also where the server asks for more (`Retry-After`)."""

    max_retokenised_mismatch_ratio: float = Field(default=0.01, ge=0, le=1)
    """Share of the planned prompts of which an answer may have been tokenised again into other ids than the
    server emitted. Above it, distilling stops."""

    @property
    def concurrency(self) -> int:
        """Requests that are answered at once."""
        return self.max_concurrency

    @field_validator("url")
    @classmethod
    def _is_base_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("expected an address like http://host:8000/v1")
        if parts.username or parts.password:
            raise ValueError(
                "name the variable of the API key in api_key_env; an address is stored with results"
            )
        return value.rstrip("/").removesuffix("/v1")
