"""Evaluate an endpoint: servers with and without a drafter, in turns, under the loads of a file."""

import asyncio
from pathlib import Path
from typing import Annotated

import aiohttp
import typer
from rich.console import Console

from eagleray.errors import DataError
from eagleray.evaluation.endpoint.config import EndpointEvaluation
from eagleray.monitoring.progress import ProgressListener, ProgressMeter
from eagleray.settings import apply_overrides, read_yaml, validate
from jobs import console
from jobs.options import OverridesArgument

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="YAML of servers, prompts and loads.")
    ] = Path("configs/serve/evaluate.yaml"),
    overrides: OverridesArgument = None,
) -> None:
    """Measure servers that run and write report.json, report.html and report.md."""
    content = apply_overrides(read_yaml(config), overrides or ())
    asked = validate(EndpointEvaluation, content, str(config))
    console.run(lambda listener, out: asyncio.run(_evaluate(asked, listener, out)))


async def _evaluate(asked: EndpointEvaluation, listener: ProgressListener, out: Console) -> None:
    from eagleray.evaluation.endpoint.client import EndpointClient
    from eagleray.evaluation.endpoint.load import PLAIN, Load, measure_load
    from eagleray.evaluation.endpoint.report import build_endpoint_report, shared_regime
    from eagleray.evaluation.endpoint.workload import load_regime, rendered_prompts
    from eagleray.evaluation.report import write_report
    from eagleray.evaluation.workloads import describe_workloads, group_by_family

    config = asked.endpoint
    prompts = rendered_prompts(asked)
    arms = {PLAIN: config.plain, **config.drafted}
    loads = [Load(concurrency=number) for number in config.concurrencies]
    loads += [Load(arrivals_per_s=rate) for rate in config.arrivals_per_s]
    meter = ProgressMeter("endpoint", len(loads), "loads", listener)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), read_bufsize=2**20) as session:
        clients = {
            arm: EndpointClient(server, session, config.request_timeout_s) for arm, server in arms.items()
        }
        regime = shared_regime({arm: await client.meet() for arm, client in clients.items()})
        blocks = {}
        for load in loads:
            blocks[load.name] = await measure_load(load, clients, prompts, config, meter.tell)
            meter.advance(1, load.name)
    if not blocks:
        raise DataError("No load was asked for; set endpoint.concurrencies.")
    report = build_endpoint_report(
        blocks,
        config,
        {**regime, **load_regime(asked, prompts)},
        workloads=describe_workloads(group_by_family(prompts), None),
    )
    _, page = write_report(asked.out, report)
    for drafter in report["drafters"].values():
        out.print(drafter["summary"], markup=False)
    out.print(f"report {page}", markup=False)


if __name__ == "__main__":
    app()
