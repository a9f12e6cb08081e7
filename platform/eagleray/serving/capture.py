"""Keeps what users asked, as prompts to distil: off unless asked for, and never without a say on redaction.

Rows are those of prompt files, each with the time at which it came, so that its load can be replayed. Files
appear whole. Answers are not kept, since a target that distils gives its own.
"""

import importlib
import json
import os
import time
from collections.abc import Callable
from typing import Any

from eagleray.errors import ConfigError
from eagleray.files import write_text_atomically
from eagleray.serving.config import CaptureConfig
from eagleray.serving.requests import ChatRequest, CompletionRequest, Generate

Redact = Callable[[str], str | None]
"""Takes one text of a request; returns what may be kept of it, or None to keep nothing of the request."""


class Capture:
    """Collects rows and writes a file whenever there are enough.

    Raises:
        ConfigError: The redaction hook cannot be imported.
    """

    def __init__(self, config: CaptureConfig):
        self._config = config
        self._redact = load_hook(config.redact)
        self._rows: list[dict[str, Any]] = []
        self._files = 0
        self._origin = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}"

    def add(self, request: Generate) -> None:
        """Keep what a request asked, if the hook lets it."""
        if (row := self._row(request)) is not None:
            self._rows.append({**row, "category": self._config.category, "arrived_s": time.time()})
        if len(self._rows) >= self._config.rows_per_file:
            self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        if not self._rows:
            return
        path = self._config.folder / f"{self._origin}-{self._files:06d}.jsonl"
        write_text_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self._rows))
        self._files += 1
        self._rows = []

    def _row(self, request: Generate) -> dict[str, Any] | None:
        if isinstance(request, ChatRequest):
            turns = [(turn.role, self._redact(turn.text)) for turn in request.messages]
            if any(text is None for _, text in turns):
                return None
            return {"messages": [{"role": role, "content": text} for role, text in turns]}
        # A list of prompts or of ids is a program's request, not a user's.
        if isinstance(request, CompletionRequest) and isinstance(request.prompt, str):
            text = self._redact(request.prompt)
            return {"prompt": text} if text else None
        return None


def load_hook(name: str) -> Redact:
    """Import `package.module:function`; `keep` changes nothing.

    Raises:
        ConfigError: There is no such function.
    """
    if name == "keep":
        return lambda text: text
    module, _, function = name.partition(":")
    try:
        hook: Redact = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"capture.redact {name!r} cannot be imported: {error}. Give package.module:function, importable "
            "where the replica runs, or `keep` to keep texts as they are."
        ) from None
    return hook
