"""From a path, a glob or a storage address to open files, decompressed by their ending."""

import fnmatch
import glob
import io
import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import fs

from eagleray.errors import DataError

XZ = ".xz"
COMPRESSIONS = (".gz", ".zst", ".bz2", ".lz4", XZ)
BUFFER_BYTES = 1 << 20


def expand(pattern: str) -> list[str]:
    """Return the files that a path or glob names, sorted, so that row order never depends on the disk.

    `**` spans folders. Storage addresses such as `s3://bucket/logs/*.jsonl` are listed there.

    Raises:
        DataError: Nothing matches.
    """
    if "://" in pattern:
        found = _expand_remote(pattern)
    elif glob.has_magic(pattern) and not Path(pattern).exists():
        found = [path for path in glob.glob(pattern, recursive=True) if Path(path).is_file()]
    else:
        found = [pattern]
    if not found:
        raise DataError(
            f"No prompts file matches {pattern!r} (looked in {Path.cwd()}). Set the `path` of this source."
        )
    return sorted(found)


def container_suffix(path: str) -> str:
    """File ending without that of a compression, lower case: `.jsonl` for `a.jsonl.gz`."""
    name = PurePosixPath(path.lower())
    return (PurePosixPath(name.stem) if name.suffix in COMPRESSIONS else name).suffix


@contextmanager
def open_rows(path: str, *, seekable: bool) -> Iterator[io.BufferedReader]:
    """Open a local file or storage address; compressed ones are read as a stream of their content.

    Raises:
        DataError: It cannot be opened, or what is read inside the block turns out to be damaged.
    """
    try:
        with io.BufferedReader(_open(path, seekable), BUFFER_BYTES) as stream:
            yield stream
    except (OSError, EOFError, lzma.LZMAError, pa.ArrowException) as error:
        raise DataError(
            f"Prompts file {path} cannot be read: {error} (looked in {Path.cwd()}). "
            "Set the `path` of this prompts source to a readable file."
        ) from None


def _open(path: str, seekable: bool) -> Any:
    """A file that reads into buffers as raw streams do, without saying so by type."""
    filesystem, inner = fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), path)
    if seekable:
        return filesystem.open_input_file(inner)
    if path.lower().endswith(XZ):  # the one compression that pyarrow does not know
        return lzma.LZMAFile(filesystem.open_input_stream(inner, buffer_size=BUFFER_BYTES))
    return filesystem.open_input_stream(inner, compression="detect", buffer_size=BUFFER_BYTES)


def _expand_remote(pattern: str) -> list[str]:
    if not glob.has_magic(pattern):
        return [pattern]
    scheme, _, rest = pattern.partition("://")
    fixed = rest[: min(rest.find(mark) for mark in "*?[" if mark in rest)].rpartition("/")[0]
    filesystem, base = fs.FileSystem.from_uri(f"{scheme}://{fixed}")
    listed = filesystem.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
    names = [entry.path[len(base) :].lstrip("/") for entry in listed if entry.type == fs.FileType.File]
    return [f"{scheme}://{fixed}/{name}" for name in names if fnmatch.fnmatchcase(f"{fixed}/{name}", rest)]
