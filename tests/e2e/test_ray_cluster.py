"""The demo recipe on a cluster started with `ray start --head`, through `ray job submit`."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import ROOT, TINY

BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Cluster:
    environment: dict[str, str]

    def run(self, *command: str, timeout_s: float = 420) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head node of its own, on free ports, stopped by the PIDs it started."""
    temp = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    gcs, dashboard = free_port(), free_port()
    environment = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}",
        "RAY_ADDRESS": f"127.0.0.1:{gcs}",
    }
    known = {process.pid for process in psutil.process_iter()}
    started = Cluster(environment).run(
        "ray", "start", "--head", f"--port={gcs}", f"--dashboard-port={dashboard}", "--num-cpus=4",
        f"--dashboard-agent-listen-port={free_port()}", f"--metrics-export-port={free_port()}",
        f"--ray-client-server-port={free_port()}", f"--temp-dir={temp}", timeout_s=120,
    )  # fmt: skip
    assert started.returncode == 0, started.stderr
    yield Cluster(environment)
    mine = [
        process
        for process in psutil.process_iter(["pid", "cmdline", "environ"])
        if process.pid not in known and str(temp) in " ".join(process.info["cmdline"] or [])
    ]
    mine += [child for process in mine for child in process.children(recursive=True)]
    for process in mine:
        if process.is_running():
            process.terminate()
    _, alive = psutil.wait_procs(mine, timeout=10)
    for process in alive:
        process.kill()
    shutil.rmtree(temp, ignore_errors=True)


def test_demo_recipe_runs_as_a_ray_job(cluster: Cluster, tmp_path: Path) -> None:
    result = cluster.run(
        "ray", "job", "submit", "--working-dir", ".", "--",
        "python", "-m", "jobs.pipeline", "--recipe", "configs/demo.yaml",
        *TINY, f"run.root={tmp_path}",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert set(report["drafters"]) == {"eagle3", "dflash", "prompt_lookup"}


def test_platform_is_the_standard_library_in_a_ray_job(cluster: Cluster) -> None:
    result = cluster.run(
        "ray",
        "job",
        "submit",
        "--working-dir",
        ".",
        "--",
        "python",
        "-m",
        "tests.architecture.platform_probe",
    )
    assert result.returncode == 0, result.stdout[-2000:]
    assert f"{Path(os.__file__).parent}/platform.py" in result.stdout


def test_platform_is_the_standard_library_under_serve_run(cluster: Cluster, tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "probe.yaml"
    config.write_text(
        f"http_options: {{host: 127.0.0.1, port: {port}}}\n"
        "applications: [{name: probe, route_prefix: /, import_path: 'tests.architecture.serve_probe:app'}]\n"
    )
    process = subprocess.Popen(
        [str(BIN / "serve"), "run", "--app-dir", str(ROOT), str(config)], cwd=ROOT, env=cluster.environment
    )
    try:
        answer = ""
        deadline_s = time.monotonic() + 120
        while not answer:
            assert process.poll() is None, "serve run ended early"
            assert time.monotonic() < deadline_s, "no answer in 120 s"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as response:
                    answer = response.read().decode()
            except OSError:
                time.sleep(0.5)
        assert Path(answer).parent == Path(os.__file__).parent
    finally:
        process.terminate()
        process.wait(60)
