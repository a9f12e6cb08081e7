"""How an endpoint is measured: which servers, at which concurrencies, for how long."""

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from eagleray.evaluation.config import BootstrapConfig
from eagleray.settings import Settings
from eagleray.targets.config import TargetConfig


class ArmConfig(Settings):
    """One server of a comparison."""

    url: str
    """`http://host:port/prefix`, with or without `/v1`."""

    model: str | None = None
    """Name under which the target is served. None: the only one."""

    @field_validator("url")
    @classmethod
    def _is_base_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("expected an address like http://127.0.0.1:8000/plain")
        return value.rstrip("/").removesuffix("/v1")


class ReplayConfig(Settings):
    """Requests that come when those of a log came."""

    log: str
    """A file or glob of captured or logged requests that say when they came. To replay what they asked too,
    give the same log as `prompts`."""

    speed: PositiveFloat = 1.0
    """Times as fast as in the log."""


class EndpointConfig(Settings):
    """Plain decoding against drafters, on servers that run."""

    plain: ArmConfig
    """Without a drafter."""

    drafted: dict[str, ArmConfig] = Field(min_length=1)
    """With one, by label. Everything else of the server must be the same."""

    concurrencies: tuple[PositiveInt, ...] = Field(default=(1, 2, 4), min_length=1)
    """Requests kept at a server at once (closed loop)."""

    arrivals_per_s: tuple[PositiveFloat, ...] = ()
    """Mean rates of requests that arrive by chance (open loop, Poisson); none are measured if empty."""

    replays: tuple[ReplayConfig, ...] = ()
    """Requests that arrive as those of a log did (open loop); their prompts stay in the order of the file."""

    prompts_per_family: PositiveInt = 12
    """Prompts of each family; fewer where there are fewer."""

    max_new_tokens: PositiveInt = 64
    """Longest answer."""

    warm_up_prompts: PositiveInt = 2
    """Answered by every server before each concurrency, and not counted."""

    block_prompts: PositiveInt = 8
    """Prompts that one server answers before another takes its turn."""

    sampled_answers: NonNegativeInt = 0
    """Answers to the first prompt that every server draws at temperature 1, to test that drafting changes no
    distribution. 0 leaves this out, which the report says."""

    sampled_tokens: int = Field(default=6, ge=2)
    """Length of these answers. The first token comes from prefill, so at least two."""

    request_timeout_s: PositiveFloat = 600.0
    """Longest wait for an answer."""

    max_drift_ratio: PositiveFloat = 0.1
    """Plain speed may differ by this share between the first and the second half of a measurement; beyond it
    the machine was not quiet and no verdict is given."""

    seed: int = 0
    """Drives the order of prompts and the arrivals."""

    bootstrap: BootstrapConfig = BootstrapConfig()


class SyntheticConfig(Settings):
    """Prompts of random tokens, for the cost of lengths that no file of prompts has."""

    prompt_tokens: tuple[PositiveInt, ...] = Field(min_length=1)
    """Lengths; each is a family of its own in the report, labelled as synthetic."""

    count: PositiveInt = 8
    """Prompts of each length."""

    seed: int = 0


class EndpointEvaluation(Settings):
    """A file of `python -m jobs.evaluate_endpoint`."""

    target: TargetConfig = TargetConfig()
    """Whose tokenizer and chat template make the prompts; every server gets the same ids."""
    template_arguments: dict[str, bool | int | float | str] = {}
    prompts: str | None = None
    """File of prompts: runs/demo/prompts/held_out.jsonl, or one in the layout of a public benchmark."""
    synthetic: SyntheticConfig | None = None
    """Or prompts of random tokens. Drafting on them says nothing of drafting on text."""
    out: Path
    """Folder of the report."""
    endpoint: EndpointConfig

    @model_validator(mode="after")
    def _one_of_both(self) -> "EndpointEvaluation":
        if (self.prompts is None) == (self.synthetic is None):
            raise ValueError("give either prompts (a file) or synthetic (random tokens)")
        return self
