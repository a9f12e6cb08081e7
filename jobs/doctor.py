"""Is this machine, its Ray and an engine's environment what EagleRay needs? Says what is not, and the remedy.

`python -m jobs.doctor --vllm .venv-vllm --drafter runs/demo/drafters/eagle3`. Nothing is started, downloaded
or changed. Ends with exit code 4 if anything is wrong.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from eagleray.errors import EagleRayError, EngineError
from jobs import console

if TYPE_CHECKING:
    from eagleray.engines.drift import Finding
    from eagleray.engines.installed import Installed

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

LEAST_MEMORY_GIB = 4.0


@app.command()
def main(
    vllm: Annotated[
        Path | None, typer.Option(help="Environment that holds vLLM.", show_default=False)
    ] = None,
    sglang: Annotated[
        Path | None, typer.Option(help="Environment that holds SGLang.", show_default=False)
    ] = None,
    wheel: Annotated[
        list[Path] | None,
        typer.Option(help="Wheel of vLLM or SGLang to look at before it is installed.", show_default=False),
    ] = None,
    drafter: Annotated[
        list[Path] | None,
        typer.Option(help="Exported drafter folder to hold to what engines load.", show_default=False),
    ] = None,
    target: Annotated[
        str, typer.Option(help="Target that the drafters are for: a folder, a hub name or `embedded`.")
    ] = "embedded",
) -> None:
    """Look at the machine and at what is named, and print what is wrong and how to mend it."""
    console.run(lambda _, out: _report(_look(vllm, sglang, wheel or (), drafter or (), target), out))


def _look(
    vllm: Path | None, sglang: Path | None, wheels: Iterable[Path], drafters: Iterable[Path], target: str
) -> "Iterator[Finding]":
    yield from _machine()
    yield from _guarded("ray", _ray)
    for environment, package in ((vllm, "vllm"), (sglang, "sglang")):
        if environment is not None:
            yield from _guarded(package, partial(_examine_environment, environment, package))
    for path in wheels:
        yield from _guarded(path.name, partial(_examine_wheel, path))
    for folder in drafters:
        yield from _guarded(str(folder), partial(examine_drafter, folder, target))


def _report(findings: "Iterable[Finding]", out: Console) -> None:
    wrong = 0
    for finding in findings:
        wrong += not finding.ok
        out.print(f"{'ok   ' if finding.ok else 'WRONG'} {finding.subject}: {finding.message}", markup=False)
    if wrong:
        print(f"\n{wrong} things are wrong; each line says what mends it.", file=sys.stderr)
        raise typer.Exit(EngineError.exit_code)


def _guarded(subject: str, look: "Callable[[], Iterable[Finding]]") -> "list[Finding]":
    """An error that a person can mend is a finding."""
    from eagleray.engines.drift import Finding

    try:
        return list(look())
    except EagleRayError as error:
        return [Finding(subject=subject, ok=False, message=str(error))]


def _examine_environment(environment: Path, package: str) -> "list[Finding]":
    from eagleray.engines.installed import Installed

    return examine(Installed.find(environment, package))


def _examine_wheel(wheel: Path) -> "list[Finding]":
    from eagleray.engines.installed import Installed

    return examine(Installed.open_wheel(wheel))


def examine(engine: "Installed") -> "list[Finding]":
    """Compare an engine's package with what our adapter uses of it.

    Raises:
        EngineError: There is no adapter for it, or the version is older than what the adapter knows.
    """
    from eagleray.engines.sglang.needs import examine as examine_sglang
    from eagleray.engines.vllm.needs import examine as examine_vllm

    if engine.package == "sglang":
        return examine_sglang(engine)
    if engine.package == "vllm":
        return examine_vllm(engine)
    raise EngineError(f"{engine.origin} is package {engine.package!r}; expected vllm or sglang.")


def examine_drafter(folder: Path, target: str) -> "list[Finding]":
    """Load a drafter strictly, and say which engine serves it.

    Raises:
        ArtifactError: It does not load; the message names the tensor or the file.
    """
    import torch

    from eagleray.drafters.folder import load_drafter, read_profile
    from eagleray.engines.drift import Finding
    from eagleray.engines.served import why_not_served
    from eagleray.engines.sglang.versions import RELEASES
    from eagleray.engines.vllm.command import METHODS
    from eagleray.targets.config import TargetConfig
    from eagleray.targets.heads import load_heads
    from eagleray.targets.identity import target_hash
    from eagleray.targets.loading import resolve_target

    profile, target_folder = read_profile(folder), resolve_target(TargetConfig(model=target))
    load_drafter(folder, load_heads(target_folder, torch.float32))
    found = [Finding(subject=str(folder), ok=True, message="every tensor and setting loads")]
    trained_on, here = profile.get("target_hash"), target_hash(target_folder)
    if trained_on not in (None, here):
        message = f"was trained on target {trained_on}, and {target} is {here}. Name its own with --target"
        found.append(Finding(subject=str(folder), ok=False, message=message))
    for engine, algorithms in (("vllm", METHODS), ("sglang", RELEASES[-1].algorithms)):
        reason = why_not_served(profile, engine, algorithms)
        message = (
            f"{engine} serves it" if reason is None else f"only for the native engine, not {engine}: {reason}"
        )
        found.append(Finding(subject=str(folder), ok=True, message=message))
    return found


def _machine() -> "Iterator[Finding]":
    import psutil

    from eagleray.engines.drift import Finding
    from eagleray.evaluation.regime import describe_machine

    machine = describe_machine()
    found = f"{machine.cpu_model}, {machine.cores} cores, accelerator {machine.accelerator}"
    yield Finding(subject="machine", ok=True, message=f"{found}, torch {machine.torch_version}")
    free_gib = psutil.virtual_memory().available / 2**30
    message = f"{free_gib:.1f} GiB free"
    remedy = f"; the demo needs {LEAST_MEMORY_GIB:.0f}. Stop other work"
    enough = free_gib >= LEAST_MEMORY_GIB
    yield Finding(subject="memory", ok=enough, message=message + ("" if enough else remedy))
    slow = "" if machine.kernels == "panels" else "; install gcc or clang for ones that verify drafts faster"
    message = f"decodes float32 with kernels of kind {machine.kernels}{slow}"
    yield Finding(subject="native engine", ok=True, message=message)


def _ray() -> "list[Finding]":
    from eagleray.cluster.session import describe_cluster
    from eagleray.engines.drift import Finding

    return [Finding(subject="ray", ok=True, message=describe_cluster())]


if __name__ == "__main__":
    app()
