"""The endpoint on Ray Serve, on the real target: what a client, a dashboard and an operator see of it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
import ray.serve as ray_serve
import yaml
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from eagleray.cluster.serving import application, start_applications, stop_applications
from eagleray.cluster.session import ray_session
from eagleray.monitoring.catalogue import SERVING
from eagleray.serving.config import ServeConfig
from eagleray.serving.file import HttpConfig, ServeFile
from eagleray.settings import read_yaml, validate

ROOT = Path(__file__).parents[2]
ENGINE = {"name": "native", "max_batch_size": 4, "threads": 1}
PROMPT = "1 2 3 4 5 6 1 2 3 4 5 6 1 2 3 4"
BODY = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def endpoint() -> Iterator[tuple[str, str]]:
    """Addresses of a plain and of a drafted application, side by side; and where metrics are scraped."""
    http = HttpConfig(port=free_port())
    plain = {"engine": ENGINE, "replicas": {"num_cpus": 0.25}}
    drafted = {**plain, "draft": {"drafter": {"name": "prompt_lookup"}, "depth": 4}}
    with ray_session(min_cpus=1):
        start_applications(
            http,
            [
                (name, f"/{name}", application(ServeConfig.model_validate(args)))
                for name, args in (("plain", plain), ("drafted", drafted))
            ],
        )
        node = ray.nodes()[0]
        yield (
            f"http://127.0.0.1:{http.port}",
            f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics",
        )
        stop_applications()


def complete(base: str, name: str, **changes: Any) -> dict[str, Any]:
    response = httpx.post(f"{base}/{name}/v1/completions", json={**BODY, **changes}, timeout=120)
    assert response.status_code == 200, response.text
    content: dict[str, Any] = response.json()
    return content


def test_applications_side_by_side_give_the_same_answers_and_tell_what_was_speculated(endpoint):
    base, _ = endpoint
    plain, drafted = complete(base, "plain"), complete(base, "drafted")
    assert plain["choices"][0]["text"] == drafted["choices"][0]["text"]
    assert plain["usage"] == drafted["usage"]
    assert plain["speculation"]["acceptance_length"] == 1.0
    assert drafted["speculation"]["acceptance_length"] > 1.5
    stopped = [complete(base, name, stop="5 6")["choices"][0] for name in ("plain", "drafted")]
    assert stopped[0] == stopped[1]
    assert stopped[0]["finish_reason"] == "stop"


def test_a_stream_over_serve_comes_in_pieces_and_ends_with_usage(endpoint):
    base, _ = endpoint
    body = {
        "messages": [{"role": "user", "content": "Count to five."}],
        "max_tokens": 8,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with httpx.stream("POST", f"{base}/plain/v1/chat/completions", json=body, timeout=120) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert len(chunks) > 5
    assert chunks[-1]["usage"]["completion_tokens"] == 8
    whole = httpx.post(
        f"{base}/plain/v1/chat/completions",
        json={k: v for k, v in body.items() if not k.startswith("stream")},
        timeout=120,
    ).json()
    told = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
    assert told == whole["choices"][0]["message"]["content"]


def test_errors_over_serve_are_json_and_models_are_listed(endpoint):
    base, _ = endpoint
    refused = httpx.post(f"{base}/plain/v1/completions", json={"prompt": "Hi", "max_tokens": 0})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")
    assert httpx.get(f"{base}/plain/v1/models").json()["data"][0]["owned_by"] == "eagleray"
    regimes = [httpx.get(f"{base}/{name}/v1/regime").json() for name in ("plain", "drafted")]
    assert regimes[0]["target_hash"] == regimes[1]["target_hash"]
    assert (regimes[0]["drafter_hash"], regimes[1]["drafter_hash"] is None) == (None, False)


def test_every_metric_that_a_panel_shows_is_found_at_the_live_endpoint(endpoint):
    base, metrics = endpoint
    # A counter shows once it has counted, and only prompts of some length are worth keeping.
    long = {"prompt": "One and " * 60, "max_tokens": 2}
    answers = [httpx.post(f"{base}/plain/v1/completions", json=long, timeout=120).json() for _ in range(2)]
    assert answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    missing, deadline_s = {metric.name for metric in SERVING}, time.monotonic() + 60
    while missing and time.monotonic() < deadline_s:
        text = httpx.get(metrics, timeout=10).text
        missing = {name for name in missing if f"ray_{name}{{" not in text}
        time.sleep(0.5)
    assert missing == set()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs" / "serve").glob("demo*.yaml")), ids=lambda p: p.name
)
def test_every_file_of_applications_that_ships_is_valid(path):
    assert validate(ServeFile, read_yaml(path), str(path)).http_options.loopback


@pytest.mark.slow
def test_the_serve_job_answers_and_ends_orderly_when_told_to(tmp_path):
    port = free_port()
    config = tmp_path / "serve.yaml"
    content = {
        "http_options": {"port": port},
        "applications": [{"name": "plain", "route_prefix": "/plain", "args": {"engine": ENGINE}}],
    }
    config.write_text(yaml.safe_dump(content))
    job = subprocess.Popen([sys.executable, "-m", "jobs.serve", "--config", str(config)], cwd=ROOT)
    try:
        deadline_s = time.monotonic() + 240
        while True:
            try:
                assert httpx.get(f"http://127.0.0.1:{port}/plain/health").status_code == 200
                break
            except httpx.TransportError:
                assert job.poll() is None
                assert time.monotonic() < deadline_s
                time.sleep(0.5)
        assert complete(f"http://127.0.0.1:{port}", "plain")["usage"]["completion_tokens"] == 12
    finally:
        job.send_signal(signal.SIGTERM)
    assert job.wait(60) == 0


class Rollout:
    """One application, deployed from a file again and again as `serve deploy` does."""

    def __init__(self, port: int):
        self.port = port

    def deploy(self, user_config: dict[str, Any] | None) -> None:
        """Deploy the file, with a drafter to try or without."""
        deployments = [{"name": "EngineReplica", "user_config": user_config}] if user_config else []
        args = {
            "engine": ENGINE,
            "draft": lookup(depth=4),
            "canary": {"share": 0.5, "min_cycles": 6, "min_compared": 2},
            "replicas": {"num_cpus": 0.25},
        }
        app = {
            "name": "drafted",
            "route_prefix": "/drafted",
            "import_path": "serve.app:build",
            "args": args,
            "deployments": deployments,
        }
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate({"applications": [app]}))

    def ask(self) -> dict[str, Any]:
        """One answer."""
        return complete(f"http://127.0.0.1:{self.port}", "drafted")

    def tell(self, path: str) -> dict[str, Any]:
        """What a route of the application says."""
        content: dict[str, Any] = httpx.get(f"http://127.0.0.1:{self.port}/drafted{path}", timeout=60).json()
        return content

    def try_out(self, draft: dict[str, Any]) -> str:
        """Swap a drafter in under traffic; returns what became of it."""
        before, answer = len(self.tell("/v1/speculation")["swaps"]), self.ask()["choices"]
        self.deploy({"draft": draft})
        deadline_s = time.monotonic() + 180
        while time.monotonic() < deadline_s:
            assert self.ask()["choices"] == answer
            if len(swaps := self.tell("/v1/speculation")["swaps"]) > before:
                return str(swaps[-1])
        raise AssertionError("no decision in time")


def lookup(**settings: Any) -> dict[str, Any]:
    ngram = settings.pop("ngram", None)
    drafter = {"name": "prompt_lookup", **({"min_ngram": ngram, "max_ngram": ngram} if ngram else {})}
    return {"drafter": drafter, **settings}


@pytest.mark.slow
def test_a_drafter_is_swapped_on_the_running_application_and_taken_back_if_it_accepts_less(monkeypatch):
    # The replica's process imports serve.app by name.
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{os.environ.get('PYTHONPATH', '')}")
    rollout = Rollout(free_port())
    with ray_session(min_cpus=1):
        ray_serve.start(http_options={"host": "127.0.0.1", "port": rollout.port})
        rollout.deploy(None)
        deadline_s = time.monotonic() + 240
        while ray_serve.status().applications["drafted"].status != "RUNNING":
            assert time.monotonic() < deadline_s
            time.sleep(0.5)
        started = rollout.tell("/v1/models")["data"][0]["created"]
        # Copies only what follows the same 60 tokens: it never drafts here.
        assert "roll_back" in rollout.try_out(lookup(depth=4, ngram=60))
        assert rollout.tell("/v1/regime")["draft"]["depth"] == 4
        assert "promote" in rollout.try_out(lookup(depth=6))
        assert rollout.tell("/v1/regime")["draft"]["depth"] == 6
        assert rollout.tell("/v1/models")["data"][0]["created"] == started, "the replica was restarted"
        stop_applications()
