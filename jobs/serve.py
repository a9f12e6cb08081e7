"""Serve: the applications of a file on Ray Serve, in this process's Ray or the cluster of RAY_ADDRESS."""

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from eagleray.errors import ArtifactError
from eagleray.monitoring.progress import ProgressListener, ProgressMeter
from eagleray.serving.file import ServedApplication, ServeFile
from eagleray.settings import apply_overrides, read_yaml, validate
from jobs import console
from jobs.options import OverridesArgument

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="YAML of applications, as `serve run` reads it.")
    ] = Path("configs/serve/demo.yaml"),
    only: Annotated[
        list[str] | None, typer.Option(help="Serve this application; may be given several times.")
    ] = None,
    overrides: OverridesArgument = None,
) -> None:
    """Serve until Ctrl-C. An application whose drafter is not there is left out, unless `--only` names it."""
    content = apply_overrides(read_yaml(config), overrides or ())
    console.run(
        lambda listener, out: _serve(validate(ServeFile, content, str(config)), only or [], listener, out)
    )


def _serve(file: ServeFile, only: list[str], listener: ProgressListener, out: Console) -> None:
    # Imported late: a wrong file must cost a second, not the import of torch and Ray.
    from eagleray.cluster.serving import application, start_applications, stop_applications
    from eagleray.cluster.session import ray_session

    bound = []
    for one in _chosen(file, only):
        try:
            bound.append((one, application(one.args)))
        except ArtifactError as error:
            if only:
                raise
            out.print(f"{one.name} is left out: {error}", markup=False)
    meter = ProgressMeter("serve", len(bound), "applications", listener)
    with ray_session(min_cpus=1):
        start_applications(file.http_options, [(one.name, one.route_prefix, target) for one, target in bound])
        meter.advance(len(bound))
        base = f"http://{file.http_options.host}:{file.http_options.port}"
        for one, _ in bound:
            out.print(f"{one.name}: {base}{one.route_prefix}/v1", markup=False)
        out.print(_example(base, bound[-1][0]), markup=False)
        _wait_for_the_end()
        stop_applications()


def _wait_for_the_end() -> None:
    """Return at Ctrl-C or when the process is told to end."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()


def _chosen(file: ServeFile, only: list[str]) -> list[ServedApplication]:
    names = [one.name for one in file.applications]
    if unknown := [name for name in only if name not in names]:
        raise ArtifactError(f"--only {unknown[0]}: this file has the applications {', '.join(names)}.")
    return [one for one in file.applications if not only or one.name in only]


def _example(base: str, one: ServedApplication) -> str:
    body = f'{{"model": "{one.args.model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    headers = ["content-type: application/json"]
    headers += [f"authorization: Bearer ${one.args.api_key_env}"] if one.args.api_key_env else []
    options = " ".join(f'-H "{header}"' for header in headers)
    return f"curl {base}{one.route_prefix}/v1/chat/completions {options} -d '{body}'"


if __name__ == "__main__":
    app()
