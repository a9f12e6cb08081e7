"""All of SGLang that our adapter uses, with what to do where a version lacks it."""

from eagleray.engines.drift import Finding, Need, probe
from eagleray.engines.installed import Installed
from eagleray.engines.sglang.versions import BLOCKS, NEWEST_KNOWN, parse, release_of

ARGUMENTS = ("srt/server_args.py", "srt/arg_groups/fields/*.py")
ANSWERS = ("srt/managers/tokenizer_manager.py",)
ROUTES = ("srt/entrypoints/http_server.py",)
ALGORITHMS = ("srt/speculative/spec_info.py", *ARGUMENTS)

_STARTING = (
    "model-path",
    "served-model-name",
    "host",
    "port",
    "dtype",
    "context-length",
    "max-running-requests",
    "tp-size",
    "sampling-defaults",
    "disable-radix-cache",
    "skip-server-warmup",
    "enable-metrics",
    "mem-fraction-static",
)
_DRAFTING = (
    "speculative-algorithm",
    "speculative-draft-model-path",
    "speculative-num-steps",
    "speculative-eagle-topk",
    "speculative-num-draft-tokens",
)


def needs_of(version: str) -> list[Need]:
    """What a version has to have.

    Raises:
        EngineError: It is older than what we know.
    """
    release = release_of(version)
    command = "Servers cannot be started with it: change engines/sglang/command.py"
    answers = "tau cannot be read from answers: add a release to engines/sglang/versions.py"
    return [
        *(
            Need(kind="flag", name=f"--{name}", files=ARGUMENTS, remedy=command)
            for name in (*_STARTING, *_DRAFTING)
        ),
        *(
            Need(kind="route", name=name, files=ROUTES, remedy=command)
            for name in ("/model_info", "/generate")
        ),
        Need(kind="field", name=release.histogram, files=ANSWERS, remedy=answers),
        Need(kind="field", name=release.accepted, files=ANSWERS, remedy=answers),
    ]


def examine(engine: Installed) -> list[Finding]:
    """Compare an installed version with what we use of it.

    Raises:
        EngineError: It is older than what we know.
    """
    newest = ".".join(map(str, NEWEST_KNOWN))
    findings = probe(engine, needs_of(engine.version), newest, parse(engine.version) > NEWEST_KNOWN)
    if not BLOCKS.keys() & release_of(engine.version).algorithms.keys():
        message = "does not serve dflash drafters; 0.5.15 and later do"
        findings.append(Finding(subject=f"sglang {engine.version}", ok=True, message=message))
    return findings
