"""Write the Grafana dashboards that are made from the metric catalogue."""

from pathlib import Path
from typing import Annotated

import typer

from eagleray.files import write_json_atomically
from eagleray.monitoring.grafana import serving_dashboard, training_dashboard, watchdog_dashboard

FOLDER = Path("configs/grafana/dashboards")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(folder: Annotated[Path, typer.Option(help="Where Grafana is provisioned from.")] = FOLDER) -> None:
    """Write one JSON file per dashboard."""
    dashboards = {
        "watchdog": watchdog_dashboard(),
        "training": training_dashboard(),
        "serving": serving_dashboard(),
    }
    for name, content in dashboards.items():
        path = folder / f"{name}.json"
        write_json_atomically(path, content)
        typer.echo(f"dashboard {path}")


if __name__ == "__main__":
    app()
