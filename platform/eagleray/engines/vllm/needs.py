"""All of vLLM that our adapter uses, with what to do where a version lacks it."""

from eagleray.engines.drift import Finding, Need, probe
from eagleray.engines.installed import Installed

NEWEST_KNOWN = (0, 32)
"""By its first two numbers; the third changes nothing we use."""

ARGUMENTS = ("engine/arg_utils.py", "entrypoints/launchers/cli_args.py")
SPECULATION = ("config/speculative.py",)
ANSWERS = ("entrypoints/openai/completion/*.py", "entrypoints/generate/base/protocol.py")
ROUTES = ("entrypoints/openai/completion/*.py", "entrypoints/serve/instrumentator/*.py")
COUNTERS = ("v1/spec_decode/metrics.py",)

_FLAGS = (
    "served-model-name",
    "host",
    "port",
    "dtype",
    "max-model-len",
    "max-num-seqs",
    "max-num-batched-tokens",
    "generation-config",
    "enforce-eager",
    "enable-prefix-caching",
    "disable-uvicorn-access-log",
    "speculative-config",
    "per-request-spec-decode-metrics",
    "hf-overrides",
)
_SPECULATION = ("method", "model", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
_ANSWERS = ("return_token_ids", "token_ids", "per_step_drafted", "per_step_accepted")
_ROUTES = ("/health", "/metrics", "/v1/completions")
_COUNTERS = ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")

COMMAND = "Servers cannot be started with it: change engines/vllm/command.py"
COUNTED = "tau cannot be read from counters: change engines/counters.py"
TAU = "tau cannot be read from answers: change engines/vllm/process.py"

NEEDS = (
    *(Need(kind="flag", name=f"--{name}", files=ARGUMENTS, remedy=COMMAND) for name in _FLAGS),
    *(Need(kind="field", name=name, files=SPECULATION, remedy=COMMAND) for name in _SPECULATION),
    *(Need(kind="field", name=name, files=ANSWERS, remedy=TAU) for name in _ANSWERS),
    *(
        Need(kind="counter", name=f"vllm:spec_decode_num_{name}", files=COUNTERS, remedy=COUNTED)
        for name in _COUNTERS
    ),
    *(Need(kind="route", name=name, files=ROUTES, remedy=COMMAND) for name in _ROUTES),
)


def examine(engine: Installed) -> list[Finding]:
    """Compare an installed version with what we use of it."""
    installed = tuple(int(part) for part in engine.version.split(".")[:2] if part.isdigit())
    newest = ".".join(map(str, NEWEST_KNOWN))
    return probe(engine, NEEDS, newest, installed > NEWEST_KNOWN)
