"""All of vLLM that our adapter uses, with what to do where a version lacks it."""

from eagleray.engines.drift import Finding, Need, probe
from eagleray.engines.installed import Installed

NEWEST_KNOWN = (0, 32)
"""By its first two numbers; the third changes nothing we use."""

ARGUMENTS = ("engine/arg_utils.py", "entrypoints/launchers/cli_args.py")
SPECULATION = ("config/speculative.py",)
ANSWERS = ("entrypoints/openai/completion/*.py", "entrypoints/generate/base/protocol.py")
ROUTES = ("entrypoints/openai/completion/*.py", "entrypoints/serve/instrumentator/*.py")
CONNECTOR = ("distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py",)
CAPTURE = ("config/kv_transfer.py", "config/speculative.py", "v1/spec_decode/extract_hidden_states.py")
TOLD = (*CONNECTOR, "entrypoints/openai/completion/*.py")
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
    "kv-transfer-config",
    "gpu-memory-utilization",
)
_SPECULATION = ("method", "model", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
_ANSWERS = ("return_token_ids", "token_ids", "per_step_drafted", "per_step_accepted", "num_spec_steps")
_CAPTURE = (
    "extract_hidden_states",
    "draft_model_config",
    "hf_config",
    "eagle_aux_hidden_state_layer_ids",
    "kv_connector",
    "kv_connector_module_path",
    "kv_role",
    "kv_connector_extra_config",
)
_TOLD = (
    "kv_transfer_params",
    "include_output_tokens",
    "hidden_states_path",
    "shared_storage_path",
    "hidden_states",
    "token_ids",
)
_CONNECTOR = (
    "ExampleHiddenStatesConnector",
    "PendingSave",
    "block_ids",
    "filename",
    "req_id",
    "_kv_cache",
    "_is_tp_rank_zero",
    "_submit_async_write",
    "_write_tensors",
    "_lock_fds",
    "_req_copy_events",
)
_ROUTES = ("/health", "/metrics", "/v1/completions")
_COUNTERS = ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")

COMMAND = "Servers cannot be started with it: change engines/vllm/command.py"
COUNTED = "tau cannot be read from counters: change engines/counters.py"
WRITTEN = "Features cannot be captured: change engines/vllm/capture.py"
WRITER = "Features cannot be captured: change engines/vllm/inside/hidden_states_writer.py"
TAU = "tau cannot be read from answers: change engines/vllm/process.py"

NEEDS = (
    *(Need(kind="flag", name=f"--{name}", files=ARGUMENTS, remedy=COMMAND) for name in _FLAGS),
    *(Need(kind="field", name=name, files=SPECULATION, remedy=COMMAND) for name in _SPECULATION),
    *(Need(kind="field", name=name, files=CAPTURE, remedy=WRITTEN) for name in _CAPTURE),
    *(Need(kind="field", name=name, files=TOLD, remedy=WRITTEN) for name in _TOLD),
    *(Need(kind="symbol", name=name, files=CONNECTOR, remedy=WRITER) for name in _CONNECTOR),
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
