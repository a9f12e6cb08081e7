"""Evaluate an endpoint: servers with and without a drafter, in turns, under the loads of a file."""

import asyncio
from pathlib import Path
from typing import Annotated

import aiohttp
import typer
from rich.console import Console

from eagleray.evaluation.endpoint.config import EndpointEvaluation
from eagleray.monitoring.progress import ProgressListener, ProgressMeter
from eagleray.settings import apply_overrides, read_yaml, validate
from jobs import console
from jobs.options import GoldenOption, OverridesArgument, WriteGoldenOption

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="YAML of servers, prompts and loads.")
    ] = Path("configs/serve/evaluate.yaml"),
    overrides: OverridesArgument = None,
    golden: GoldenOption = None,
    write_golden: WriteGoldenOption = None,
) -> None:
    """Measure servers that run and write report.json, report.html and report.md."""
    content = apply_overrides(read_yaml(config), overrides or ())
    asked = validate(EndpointEvaluation, content, str(config))
    paths = (golden, write_golden)
    console.run(lambda listener, out: asyncio.run(_evaluate(asked, paths, listener, out)))


async def _evaluate(
    asked: EndpointEvaluation,
    golden_paths: tuple[Path | None, Path | None],
    listener: ProgressListener,
    out: Console,
) -> None:
    from eagleray.evaluation.endpoint.client import EndpointClient
    from eagleray.evaluation.endpoint.load import PLAIN, draw_answers, measure_load, plan_loads
    from eagleray.evaluation.endpoint.report import (
        build_endpoint_report,
        plain_answers,
        sampling_checks,
        shared_regime,
    )
    from eagleray.evaluation.endpoint.workload import load_regime, rendered_prompts
    from eagleray.evaluation.exactness import require_passed
    from eagleray.evaluation.golden import golden_files
    from eagleray.evaluation.report import write_report
    from eagleray.evaluation.workloads import describe_workloads, group_by_family

    config = asked.endpoint
    prompts = rendered_prompts(asked)
    arms = {PLAIN: config.plain, **config.drafted}
    loads = plan_loads(config)
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
        sampled = await draw_answers(clients, prompts[0], config) if config.sampled_answers else {}
    first = next(iter(blocks.values()))
    conditions = {**regime["server"], "max_new_tokens": config.max_new_tokens}
    files = golden_files(*golden_paths)
    golden = [check for file in files for check in file.apply(conditions, plain_answers(first))]
    report = build_endpoint_report(
        blocks,
        config,
        {**regime, **load_regime(asked, prompts)},
        checks=[*sampling_checks(sampled, config.drafted), *golden],
        workloads=describe_workloads(group_by_family(prompts), None),
    )
    _, page = write_report(asked.out, report)
    for drafter in report["drafters"].values():
        out.print(drafter["summary"], markup=False)
    out.print(f"report {page}", markup=False)
    require_passed(golden)


if __name__ == "__main__":
    app()
