"""Settings of one served application: which target, with which drafter, behind which limits."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from eagleray.drafters.prompt_lookup.config import PromptLookupConfig
from eagleray.engines.config import EngineConfig, ServedEngineConfig
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.settings import Settings
from eagleray.speculation.config import TreeSetting, TypicalAcceptance
from eagleray.targets.config import TargetConfig


class DraftConfig(Settings):
    """What drafts, and how deep."""

    folder: Path | None = None
    """An exported drafter, e.g. runs/demo/drafters/eagle3."""

    drafter: PromptLookupConfig | None = None
    """Or a drafter that needs no training."""

    depth: PositiveInt = 5
    """Tokens drafted per cycle."""

    adaptive: bool = False
    """`depth` is the most: every cycle drafts as deep as promises the most tokens per second, and not at all
    where drafting would lose."""

    drawn: bool = False
    """Draw the drafts of sampled requests from the drafter's own distribution instead of taking its likeliest
    tokens. Answers keep their distribution; a seed then gives other ids than without a drafter."""

    typical: TypicalAcceptance | None = None
    """Accept what the target finds plausible instead of what it says. Sampled answers are then lossy, which
    they and the regime say."""

    expected_tau: float | None = Field(default=None, ge=1.0)
    """Acceptance length that was measured where the drafter was judged. Live traffic that stays far below it
    has drifted away from what the drafter was trained on, and health says so. None watches nothing."""

    tree: TreeSetting | None = None
    """How the draft may branch; None drafts chains."""

    block_size: int | None = Field(default=None, ge=2)
    """Slots that a block drafter runs, the anchor included; `depth` of the drafted ones are verified. None:
    as many as the depth needs. A sweep may find that a wider block drafts better first tokens."""

    @model_validator(mode="after")
    def _one_of_both(self) -> "DraftConfig":
        if (self.folder is None) == (self.drafter is None):
            raise ValueError("give either folder (an exported drafter) or drafter (one without training)")
        return self

    @model_validator(mode="after")
    def _blocks_hold_the_depth(self) -> "DraftConfig":
        if self.block_size is not None and self.depth >= self.block_size:
            raise ValueError(
                f"a block of {self.block_size} slots drafts at most {self.block_size - 1} tokens; depth is "
                f"{self.depth}"
            )
        return self


_NATIVE_ONLY = ("tree", "drawn", "typical", "adaptive", "block_size")
"""Options of a draft that an engine in a process of its own does not have."""


def why_not_drafted(engine: str, draft: DraftConfig) -> str | None:
    """Why an engine of this name cannot draft like that; None if it can."""
    if engine == "native":
        return None
    if engine not in ("vllm", "sglang"):
        return (
            f"the engine {engine!r} drafts by its own settings, if at all; leave draft out, or set "
            "engine.name to native, vllm or sglang"
        )
    if given := [name for name in _NATIVE_ONLY if getattr(draft, name)]:
        names = ", ".join(f"draft.{name}" for name in given)
        return f"{names} is only for the native engine; leave it out, or set engine.name to native"
    if engine == "sglang" and draft.drafter is not None:
        return "SGLang is served without prompt lookup; name an exported drafter in draft.folder, or use vllm"
    return None


class LimitsConfig(Settings):
    """What one replica takes on. Everything beyond is refused at once, with the limit in the message."""

    max_body_bytes: PositiveInt = 2**20
    """Largest request body. HTTP 413 above it."""

    max_queued_requests: int = Field(default=64, ge=0)
    """Answers that may wait beside those that the engine decodes together. HTTP 429 above it."""

    max_choices: PositiveInt = 16
    """Answers that one request may ask for: prompts times `n`."""

    max_stop_strings: PositiveInt = 16
    """Stop strings of one request."""

    max_stop_characters: PositiveInt = 256
    """Length of a stop string."""

    request_timeout_s: PositiveFloat = 600.0
    """Longest time to an answer's end, waiting included. HTTP 504 after it."""


class HealthConfig(Settings):
    """When a replica that still runs is not healthy."""

    stall_s: PositiveFloat = 60.0
    """Longest time without a new token while requests are unfinished; longer than any prefill takes."""

    window_cycles: PositiveInt = 400
    """Cycles over which the acceptance length is watched."""

    collapse_tau: float = Field(default=1.02, ge=1.0)
    """Acceptance length under which a drafter does nothing but cost time."""

    drift_ratio: float = Field(default=0.8, gt=0.0, le=1.0)
    """Share of the drafter's expected acceptance length under which traffic has drifted."""


class CanaryConfig(Settings):
    """How a new drafter is tried beside the live one before it takes over."""

    share: float = Field(default=0.25, gt=0.0, lt=1.0)
    """Of the requests that the new drafter answers meanwhile."""

    min_cycles: PositiveInt = 200
    """Cycles that both drafters must have run."""

    min_compared: PositiveInt = 4
    """Greedy answers that both must have given alike."""

    tau_ratio: float = Field(default=0.95, gt=0.0)
    """Share of the live drafter's acceptance length that the new one must reach."""


class CaptureConfig(Settings):
    """Keeping live requests as prompts to distil."""

    folder: Path
    """Where JSON Lines files of prompts appear; a prompts source of kind `files` reads them."""

    redact: str = Field(pattern=r"^(keep|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$")
    """`package.module:function` that is given each text and returns what may be kept of it, or None to keep
    nothing of the request. `keep` keeps texts as they are, which must be said."""

    category: str = "live"
    """Category of the prompts."""

    rows_per_file: PositiveInt = 100
    """Requests of a file. What was not written yet is lost when a replica ends."""


class ReplicasConfig(Settings):
    """How many engines answer, and what each takes of the cluster."""

    min: PositiveInt = 1
    """Replicas at rest."""

    max: PositiveInt = 1
    """Replicas under load. Above `min`, Serve adds and removes them by how many answers are unfinished."""

    num_cpus: float = Field(default=1.0, ge=0)
    """Ray CPUs of a replica; a share where several applications take turns on a small machine."""

    num_gpus: float = Field(default=0.0, ge=0)
    """Ray GPUs of a replica."""

    @model_validator(mode="after")
    def _check_order(self) -> "ReplicasConfig":
        if self.max < self.min:
            raise ValueError(f"max {self.max} is below min {self.min}; raise max")
        return self


class ServeConfig(Settings):
    """Arguments of `serve.app:build`."""

    model: str = Field(default="target", pattern=r"^[\w.:/-]{1,128}$")
    """Name under which clients ask for the target."""

    target: TargetConfig = TargetConfig()
    template_arguments: dict[str, bool | int | float | str] = {}
    """What the chat template gets, e.g. `enable_thinking: false`."""
    engine: Annotated[EngineConfig | ServedEngineConfig, Field(discriminator="name")] = NativeEngineConfig()
    """`vllm` and `sglang` are started by each replica as processes of its own."""

    engine_logs: Path = Path("runs/serve")
    """Folder that takes what such a process prints."""

    draft: DraftConfig | None = None
    """None decodes plainly."""
    limits: LimitsConfig = LimitsConfig()
    health: HealthConfig = HealthConfig()
    canary: CanaryConfig = CanaryConfig()
    capture: CaptureConfig | None = None
    """None keeps nothing."""
    replicas: ReplicasConfig = ReplicasConfig()

    api_key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable that holds the bearer token clients must send. None: no token. Needed wherever the
    endpoint listens on more than loopback."""

    @model_validator(mode="after")
    def _engine_drafts_like_that(self) -> "ServeConfig":
        if self.draft is not None and (reason := why_not_drafted(self.engine.name, self.draft)):
            raise ValueError(f"draft is given, but {reason}")
        return self

    @model_validator(mode="after")
    def _one_dtype(self) -> "ServeConfig":
        if isinstance(self.engine, ServedEngineConfig):
            told = self.target.dtype
            if "dtype" in self.target.model_fields_set and told != self.engine.dtype:
                raise ValueError(
                    f"target.dtype is {told} and engine.dtype is {self.engine.dtype}; the engine runs the "
                    "target, so leave target.dtype out or set both alike"
                )
        return self


class SwapConfig(Settings):
    """What may change while an application serves: `user_config` of its deployment."""

    draft: DraftConfig | None
    """The drafter to try and then to serve; null for plain decoding."""
