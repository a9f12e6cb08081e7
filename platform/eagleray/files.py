"""Writing files so that a kill at any instant leaves the old content or the new, never a half."""

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a file aside to fill; after the block, flush it, rename it over `path`, and flush the renaming."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield aside
        flush(aside)
        os.replace(aside, path)
        flush(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a file aside that then replaces `path`."""
    with replacing(path) as aside:
        write(aside)


def write_json_atomically(path: Path, content: Any) -> None:
    """Write `content` as indented JSON."""
    write_text_atomically(path, to_json(content))


def write_text_atomically(path: Path, text: str) -> None:
    """Write `text` as UTF-8."""
    write_atomically(path, lambda aside: _write_text(aside, text))


def to_json(content: Any) -> str:
    """Spell `content` as the JSON that files hold: indented, and strict about what is a number."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def move_aside(path: Path, folder: Path) -> Path:
    """Move a file into `folder` under a name that nothing there has; returns its new path."""
    folder.mkdir(parents=True, exist_ok=True)
    copies = itertools.count(1)
    aside = next(name for n in copies if not (name := folder / f"{path.name}.{n}").exists())
    return path.rename(aside)


def flush(path: Path) -> None:
    """Make a file's content, or the renamings in a folder, survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
