"""A vLLM server as a process of ours: started, waited for, asked, and stopped with all it started."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from eagleray.engines.base import FinishReason
from eagleray.engines.vllm.command import MODEL_NAME, ServedDrafter, server_command, server_environment
from eagleray.engines.vllm.config import VllmConfig
from eagleray.errors import EngineError
from eagleray.speculation.acceptance import Cycle, cut_cycles

POLL_S = 0.5
STOP_TIMEOUT_S = 20.0
LOG_LINES = 20
"""Of the log, quoted in an error."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One greedy answer of the server."""

    answer_ids: tuple[int, ...]
    """Emitted ids; the stop token, if one was emitted, is the last."""
    finish_reason: FinishReason
    cycles: tuple[Cycle, ...]
    """One per verification, counted as everywhere in EagleRay. Empty without a drafter."""


class VllmServer:
    """A running server; a context manager that leaves no process behind.

    Args:
        target: Hugging Face folder of the target.
        log: File that takes everything the server prints.

    Raises:
        EngineError: The environment holds no vLLM, or the server does not come up: it ended or stayed
            silent for `start_timeout_s`. The message quotes the end of its log.
    """

    def __init__(self, config: VllmConfig, target: Path, drafter: ServedDrafter | None, log: Path):
        self.config = config
        self.log = log
        self.url = f"http://127.0.0.1:{(port := _free_port())}"
        command = server_command(config, target, drafter, port)
        if not Path(command[0]).exists():
            raise EngineError(
                f"There is no vLLM at {command[0]}. Make its environment with `make engine-vllm`, or name "
                "another one in engine.environment."
            )
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as stream:
            # A session of its own, so that all it starts can be found and stopped.
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **server_environment(config)},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            self._wait_until_ready()
            undo.pop_all()

    def __enter__(self) -> "VllmServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def complete(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Completion:
        """Answer one prompt greedily; several threads may ask at once.

        Raises:
            EngineError: The server refused the request, answered something else, or died.
        """
        body = {
            "model": MODEL_NAME,
            "prompt": list(prompt_ids),
            "max_tokens": max_new_tokens,
            "temperature": 0.0,
            "skip_special_tokens": False,
            "return_token_ids": True,
        }
        content = self._post("/v1/completions", body)
        try:
            (choice,) = content["choices"]
            ids = tuple(choice["token_ids"])
            counts = (content.get("metrics") or {}).get("speculative_decoding")
            steps = (counts["per_step_drafted"], counts["per_step_accepted"]) if counts else ((), ())
            cycles = cut_cycles(*steps, answer_tokens=len(ids)) if counts else ()
            return Completion(answer_ids=ids, finish_reason=choice["finish_reason"], cycles=cycles)
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(
                f"vLLM answered in an unknown form ({type(error).__name__}: {error}): {str(content)[:500]}. "
                "Expected the completions of version 0.32 with `--per-request-spec-decode-metrics detailed`."
            ) from None

    def stop(self) -> None:
        """End the server and every process it started; the second call does nothing."""
        group = self._group()
        for wanted, timeout_s in ((signal.SIGTERM, STOP_TIMEOUT_S), (signal.SIGKILL, STOP_TIMEOUT_S)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, wanted)
            _, group = psutil.wait_procs(group, timeout=timeout_s)
            group = [*group, *self._group()]
            if not group:
                break
        self._process.wait(STOP_TIMEOUT_S)

    def _group(self) -> list[psutil.Process]:
        """What still runs of the server's session."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getpgid(process.pid) == self._process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + self.config.start_timeout_s
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                raise EngineError(
                    f"vLLM ended with exit code {self._process.returncode} while starting.{self._log_end()}"
                )
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}/health", timeout=POLL_S).close()
                return
            time.sleep(POLL_S)
        raise EngineError(
            f"vLLM did not answer within {self.config.start_timeout_s:g} s; raise engine.start_timeout_s if "
            f"it was still loading.{self._log_end()}"
        )

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=self.config.request_timeout_s) as response:
                content: dict[str, Any] = json.load(response)
                return content
        except urllib.error.HTTPError as error:
            told = error.read().decode(errors="replace")[:1000]
            raise EngineError(f"vLLM refused a request with HTTP {error.code}: {told}") from None
        except (OSError, json.JSONDecodeError) as error:
            ended = self._process.poll()
            state = "it is still running" if ended is None else f"it ended with exit code {ended}"
            raise EngineError(f"vLLM did not answer a request ({error}); {state}.{self._log_end()}") from None

    def _log_end(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        return f" The end of {self.log}:\n" + "\n".join(lines)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
