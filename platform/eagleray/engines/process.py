"""An engine's server as a process of ours: started, waited for, asked, and stopped with all it started."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from eagleray.engines.guard import Guard
from eagleray.errors import EngineError

POLL_S = 0.5
STOP_TIMEOUT_S = 20.0
LOG_LINES = 20
"""Of the log, quoted in an error."""


class ServerProcess:
    """A running server; a context manager that leaves no process behind, nor does a killed one of ours.

    Args:
        name: What it is, for messages.
        variables: Environment variables besides those of this process.
        ready: Path that answers once the server does.
        log: File that takes everything the server prints.

    Raises:
        EngineError: The server does not come up: it ended, or stayed silent for `start_timeout_s`. The
            message quotes the end of its log.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        variables: Mapping[str, str],
        *,
        port: int,
        ready: str,
        log: Path,
        start_timeout_s: float,
        request_timeout_s: float,
    ):
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        self.name = name
        self._request_timeout_s = request_timeout_s
        log.parent.mkdir(parents=True, exist_ok=True)
        self._guard = Guard()
        with contextlib.ExitStack() as undo, log.open("wb") as stream:
            undo.callback(self._guard.release)
            # A session of its own, so that all it starts can be found and stopped.
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            undo.pop_all()
        self._guard.watch(self._process.pid)
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            self._wait_until_ready(ready, start_timeout_s)
            undo.pop_all()

    @property
    def ended(self) -> int | None:
        """Exit code of a server that runs no more."""
        return self._process.poll()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for something.

        Raises:
            EngineError: The server refused the request, answered something else, or died.
        """
        request = urllib.request.Request(
            f"{self.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=self._request_timeout_s) as response:
                content: dict[str, Any] = json.load(response)
                return content
        except urllib.error.HTTPError as error:
            told = error.read().decode(errors="replace")[:1000]
            raise EngineError(f"{self.name} refused a request with HTTP {error.code}: {told}") from None
        except (OSError, json.JSONDecodeError) as error:
            ended = self.ended
            state = "it is still running" if ended is None else f"it ended with exit code {ended}"
            raise EngineError(
                f"{self.name} did not answer a request ({error}); {state}.{self.log_end()}"
            ) from None

    def get(self, path: str) -> str:
        """Read a page.

        Raises:
            EngineError: The server does not give it.
        """
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=self._request_timeout_s) as response:
                text: str = response.read().decode(errors="replace")
                return text
        except OSError as error:
            raise EngineError(f"{self.name} did not give {path} ({error}).{self.log_end()}") from None

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
        self._guard.release()

    def _group(self) -> list[psutil.Process]:
        """What still runs of the server's session."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getpgid(process.pid) == self._process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _wait_until_ready(self, path: str, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if self.ended is not None:
                raise EngineError(
                    f"{self.name} ended with exit code {self._process.returncode} while "
                    f"starting.{self.log_end()}"
                )
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}{path}", timeout=POLL_S).close()
                return
            time.sleep(POLL_S)
        raise EngineError(
            f"{self.name} did not answer within {timeout_s:g} s; raise engine.start_timeout_s if "
            f"it was still loading.{self.log_end()}"
        )

    def log_end(self) -> str:
        """The last lines that it printed."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        return f" The end of {self.log}:\n" + "\n".join(lines)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
