"""An engine that a replica starts as a process, on stand-ins: answers, errors, swaps, nothing left behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from pydantic import ValidationError

from eagleray.drafters.prompt_lookup.config import PromptLookupConfig
from eagleray.engines.base import FailedRequest, GenerationRequest
from eagleray.engines.managed.engine import ManagedEngine
from eagleray.engines.served import ServedDrafter
from eagleray.engines.sglang.config import SglangConfig
from eagleray.errors import ArtifactError, ConfigError
from eagleray.serving.config import DraftConfig, ServeConfig
from eagleray.serving.opening import open_service
from eagleray.targets.embedded import prepare_embedded
from tests.unit.serving.conftest import Client, events_of

STAND_INS = Path(__file__).parents[1] / "engines"
LOOKUP = {"drafter": {"name": "prompt_lookup"}, "depth": 4}
BODY = {
    "prompt": [40, 41],
    "max_tokens": 7,
    "temperature": 0,
    "return_token_ids": True,
    "return_cycles": True,
}


def environment_of(folder: Path, engine: str, version: str, script: str) -> Path:
    """An environment that holds a stand-in under an engine's name and version."""
    site = folder / "lib" / "python3.11" / "site-packages"
    (site / engine).mkdir(parents=True)
    metadata = site / f"{engine}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {engine}\nVersion: {version}\n")
    program = folder / "bin" / ("vllm" if engine == "vllm" else "python")
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n{script}exec {sys.executable} {STAND_INS}/{engine}/stand_in.py "$@"\n')
    program.chmod(0o755)
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    return environment_of(tmp_path / "environment", "vllm", "0.32.0", "")


@pytest.fixture
def launch(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Client]]:
    """Open a service on the stand-in in one of its modes."""
    clients: list[Client] = []

    def start(mode: str = "answers", **settings: Any) -> Client:
        monkeypatch.setenv("STAND_IN_MODE", mode)
        engine = {"name": "vllm", "environment": environment, "start_timeout_s": 60}
        config = {"engine": engine, "engine_logs": tmp_path / "logs", **settings}
        service = open_service(ServeConfig.model_validate(config))
        clients.append(Client(service, service._live.stream))
        return clients[-1]

    yield start
    for client in clients:
        client.service.close()


def logs_of(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "logs").iterdir())


def child_of(log: Path) -> int:
    return int(next(line for line in log.read_text().splitlines() if line.startswith("child")).split()[1])


def gone_within(pid: int, timeout_s: float = 20.0) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_plain_answers_come_with_ids_usage_and_cycles_of_one_token(launch) -> None:
    reply = launch().complete(**BODY).json()
    choice = reply["choices"][0]
    assert choice["token_ids"] == [40, 41, 42, 43, 44, 45, 46]
    assert choice["finish_reason"] == "length"
    assert choice["cycles"] == {"drafted": [0] * 6, "accepted": [0] * 6, "delivered": [1] * 6}
    assert reply["usage"]["completion_tokens"] == 7


def test_the_counts_of_every_answer_are_speculation(launch) -> None:
    client = launch(draft=LOOKUP)
    reply = client.complete(**BODY).json()
    assert reply["choices"][0]["cycles"] == {"drafted": [4, 4], "accepted": [2, 2], "delivered": [3, 3]}
    assert reply["speculation"]["acceptance_length"] == 3.0
    assert reply["speculation"]["acceptance_rate_by_slot"] == [1.0, 1.0, 0.0, 0.0]
    assert client.send("GET", "/v1/speculation").json()["drafted_tokens"] == 8
    regime = client.send("GET", "/v1/regime").json()
    assert (regime["engine"], regime["engine_version"]) == ("vllm", "vllm 0.32.0")
    assert regime["draft"]["depth"] == 4


def test_an_answer_in_which_nothing_was_drafted_is_of_plain_cycles(launch) -> None:
    reply = launch("drafts nothing", draft=LOOKUP).complete(**BODY).json()
    assert reply["choices"][0]["cycles"] == {"drafted": [0] * 6, "accepted": [0] * 6, "delivered": [1] * 6}


def test_a_stream_shows_ids_as_the_server_tells_them(launch) -> None:
    client = launch("is slow")
    events = events_of(client.complete(**BODY, stream=True))
    pieces = [choice["token_ids"] for event in events for choice in event["choices"] if choice["token_ids"]]
    assert pieces == [[40], [41, 42, 43], [44, 45, 46]]


def test_a_stop_string_ends_the_answer_at_the_token_that_completes_it(launch, chat) -> None:
    client = launch(draft=LOOKUP)
    text = chat.show([40, 41, 42, 43, 44, 45, 46])
    stop = chat.show([44])
    reply = client.complete(**BODY, stop=[stop]).json()
    choice = reply["choices"][0]
    assert choice["text"] == text[: text.index(stop)]
    assert choice["finish_reason"] == "stop"
    kept = len(choice["token_ids"])
    assert sum(choice["cycles"]["delivered"]) == kept - 1


def test_a_request_that_the_server_refuses_is_the_client_s_fault(launch) -> None:
    response = launch("refuses").complete(**BODY)
    assert response.status_code == 400
    assert "prompt too long" in response.json()["error"]["message"]


@pytest.mark.parametrize("field", [{"logprobs": 1}, {"draft_depth": 0}])
def test_what_the_server_is_not_asked_for_is_refused_by_name(launch, field) -> None:
    response = launch().complete(**BODY, **field)
    assert response.status_code == 400
    assert "Leave it out, or use the native engine" in response.json()["error"]["message"]


def test_a_server_that_dies_mid_answer_is_a_plain_error_to_clients_and_its_log_goes_to_ours(
    launch, tmp_path, caplog
) -> None:
    client = launch("dies slowly")
    response = client.complete(**BODY, stream=True)
    error = json.loads(response.text.strip().rpartition("data: ")[2])["error"]
    assert error["message"] == "The engine has stopped; try again in a moment."
    health = client.send("GET", "/health")
    assert health.status_code == 503
    assert health.json() == {"status": "stopped", "reason": "vLLM ended with exit code 9"}
    assert client.complete(**BODY).status_code == 503
    assert "out of memory" in caplog.text
    child = child_of(logs_of(tmp_path)[0])
    client.service.close()
    assert gone_within(child)


def swapped(client: Client, draft: DraftConfig, requests: int) -> list[int]:
    """Swap, ask, and return the statuses."""

    async def run() -> list[int]:
        transport = httpx.ASGITransport(client.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as session:
            await client.service.swap(draft)
            statuses = []
            for _ in range(requests):
                statuses.append((await session.post("/v1/completions", json=BODY)).status_code)
            while client.service._shadows:
                await asyncio.sleep(0.01)
            return statuses

    return asyncio.run(run())


CANARY = {"share": 0.5, "min_cycles": 8, "min_compared": 2}
NEW = DraftConfig(drafter=PromptLookupConfig(), depth=4)


def test_a_drafter_is_swapped_in_by_a_second_server_and_the_first_one_ends(launch, tmp_path) -> None:
    client = launch(canary=CANARY)
    assert swapped(client, NEW, 16) == [200] * 16
    (swap,) = client.service.swaps
    assert swap.startswith("promote drafter-2")
    drafter, plain = logs_of(tmp_path)
    assert gone_within(child_of(plain))
    assert not gone_within(child_of(drafter), 0.1)
    assert client.complete(**BODY).json()["speculation"]["acceptance_length"] == 3.0


def test_a_candidate_that_dies_is_taken_back_and_the_live_server_goes_on(launch, monkeypatch) -> None:
    client = launch(canary=CANARY)
    monkeypatch.setenv("STAND_IN_MODE", "dies slowly")
    statuses = swapped(client, NEW, 6)
    assert sorted(statuses) == [200] * 5 + [503]
    (swap,) = client.service.swaps
    assert swap == "roll_back drafter-2: vLLM ended with exit code 9"
    assert client.service.health.status == "healthy"


def test_a_server_that_does_not_start_leaves_the_live_one(launch, monkeypatch) -> None:
    client = launch()
    monkeypatch.setenv("STAND_IN_MODE", "fails")
    with pytest.raises(Exception, match="no such flag"):
        swapped(client, NEW, 0)
    assert client.complete(**BODY).status_code == 200
    assert client.service.swaps == []


def test_a_killed_replica_leaves_no_server(environment, tmp_path) -> None:
    log = tmp_path / "server.log"
    code = (
        "import sys, threading, time\n"
        "from pathlib import Path\n"
        "from eagleray.engines.vllm.config import VllmConfig\n"
        "from eagleray.engines.vllm.process import VllmServer\n"
        f"config = VllmConfig(environment=Path({str(environment)!r}))\n"
        "kept = []\n"
        f"start = lambda: kept.append(VllmServer(config, Path('/'), None, Path({str(log)!r})))\n"
        # Started by a thread that ends, as a swap does.
        "thread = threading.Thread(target=start); thread.start(); thread.join()\n"
        "print('ready', flush=True); time.sleep(600)\n"
    )
    variables = {**os.environ, "STAND_IN_MODE": "answers"}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=variables) as replica:
        assert replica.stdout is not None
        ready = replica.stdout.readline()
        child = child_of(log)
        server = psutil.Process(child).ppid()
        ran = not gone_within(server, 0.2)
        replica.send_signal(signal.SIGKILL)
    assert (ready, ran) == (b"ready\n", True)
    assert gone_within(server)
    assert gone_within(child)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("tree", {"nodes": 8}),
        ("drawn", True),
        ("typical", {}),
        ("adaptive", True),
        ("block_size", 8),
    ],
)
def test_options_of_the_native_engine_are_refused_by_name(launch, option, value) -> None:
    draft = {**LOOKUP, option: value}
    with pytest.raises(ValidationError, match=f"draft.{option} is only for the native engine"):
        ServeConfig.model_validate({"engine": {"name": "vllm"}, "draft": draft})
    client = launch()
    with pytest.raises(ConfigError, match=f"draft.{option} is only for the native engine"):
        swapped(client, DraftConfig.model_validate(draft), 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": {"name": "sglang"}, "draft": LOOKUP}, "without prompt lookup"),
        ({"engine": {"name": "openai", "url": "http://x:1"}, "draft": LOOKUP}, "native, vllm or sglang"),
        ({"engine": {"name": "vllm"}, "target": {"dtype": "bfloat16"}}, "target.dtype is bfloat16"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings, message) -> None:
    with pytest.raises(ValidationError, match=message):
        ServeConfig.model_validate(settings)


def test_a_drafter_that_is_not_there_is_named(launch, tmp_path) -> None:
    with pytest.raises(ArtifactError, match="There is no drafter in"):
        launch(draft={"folder": tmp_path / "nowhere"})


@pytest.mark.parametrize(
    ("version", "histogram"),
    [("0.5.10", "spec_accept_histogram"), ("0.5.23", "spec_correct_drafts_histogram")],
)
def test_sglang_streams_all_ids_or_the_new_ones(tmp_path, monkeypatch, chat, version, histogram) -> None:
    environment = environment_of(tmp_path / "environment", "sglang", version, "shift 2\n")
    monkeypatch.setenv("STAND_IN_HISTOGRAM", histogram)
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    profile = {"algorithm": "eagle3", "settings": {}, "engines": {}}
    (drafter / "speculation_profile.json").write_text(json.dumps(profile))
    engine = ManagedEngine(
        SglangConfig(environment=environment, start_timeout_s=60),
        prepare_embedded(),
        ServedDrafter(folder=drafter, depth=3),
        tmp_path / "server.log",
        chat.show,
    )
    for tokens in (1, 8):
        engine.stream.submit(
            GenerationRequest(request_id=str(tokens), prompt_ids=(40,), max_new_tokens=tokens)
        )
    outcomes = []
    while engine.stream.unfinished:
        outcomes += engine.stream.advance()
    engine.close()
    first, answer = sorted(outcomes, key=lambda outcome: outcome.request_id)
    assert not isinstance(first, FailedRequest)
    assert not isinstance(answer, FailedRequest)
    assert (first.answer_ids, first.cycles) == ((0,), ())
    assert answer.answer_ids == tuple(range(8))
    counted = [(cycle.drafted, cycle.accepted, cycle.delivered) for cycle in answer.cycles]
    assert counted == [(3, 0, 1), (3, 2, 3), (3, 3, 3)]
