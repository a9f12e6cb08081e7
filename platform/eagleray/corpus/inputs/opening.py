"""From a path, a glob or a storage address to open files, decompressed by their ending."""

import fnmatch
import glob
import io
import lzma
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import fs

from eagleray.errors import DataError

XZ = ".xz"
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4", XZ: "xz"}
"""What pyarrow calls the compression of a file ending."""
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


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """A file as its store lists it: another content has another size or time."""

    path: str
    size_bytes: int
    modified_ns: int


def describe_file(path: str) -> InputFile:
    """List a file; one that is not there has no bytes, and opening it says so."""
    try:
        filesystem, inner = _locate(path)
        found = filesystem.get_file_info(inner)
    except (OSError, pa.ArrowException):
        return InputFile(path=path, size_bytes=0, modified_ns=0)
    return InputFile(path=path, size_bytes=found.size or 0, modified_ns=found.mtime_ns or 0)


@contextmanager
def open_rows(path: str, *, seekable: bool) -> Iterator[tuple[io.BufferedReader, Callable[[], int]]]:
    """Open a local file or storage address; compressed ones are read as a stream of their content.

    The second value tells how many bytes were read of the file as it lies there; 0 where rows are found by
    jumping.

    Raises:
        DataError: It cannot be opened, or what is read inside the block turns out to be damaged.
    """
    try:
        filesystem, inner = _locate(path)
        if seekable:
            with io.BufferedReader(filesystem.open_input_file(inner), BUFFER_BYTES) as stream:
                yield stream, lambda: 0
            return
        source = filesystem.open_input_stream(inner, compression=None, buffer_size=BUFFER_BYTES)
        with _CountedStream(source) as raw, io.BufferedReader(_decompress(raw, path), BUFFER_BYTES) as stream:
            yield stream, lambda: raw.read_bytes
    except (OSError, EOFError, lzma.LZMAError, pa.ArrowException) as error:
        raise DataError(
            f"Prompts file {path} cannot be read: {error} (looked in {Path.cwd()}). "
            "Set the `path` of this prompts source to a readable file."
        ) from None


def _locate(path: str) -> tuple[fs.FileSystem, str]:
    """The file system that holds a path or storage address, and the path in it."""
    if "://" not in path:
        return fs.LocalFileSystem(), path
    filesystem, inner = fs.FileSystem.from_uri(path)
    return filesystem, inner


class _CountedStream(io.RawIOBase):
    """Counts the bytes that are read of a stream."""

    def __init__(self, source: Any):
        self.read_bytes = 0
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._source.readinto(buffer)
        self.read_bytes += count
        return count

    def close(self) -> None:
        self._source.close()
        super().close()


def _decompress(raw: Any, path: str) -> Any:
    """The content of a file: it reads into buffers as raw streams do, without saying so by type."""
    suffix = PurePosixPath(path.lower()).suffix
    if suffix == XZ:  # the one compression that pyarrow does not know
        return lzma.LZMAFile(raw)
    return pa.CompressedInputStream(raw, COMPRESSIONS[suffix]) if suffix in COMPRESSIONS else raw


def _expand_remote(pattern: str) -> list[str]:
    if not glob.has_magic(pattern):
        return [pattern]
    scheme, _, rest = pattern.partition("://")
    fixed = rest[: min(rest.find(mark) for mark in "*?[" if mark in rest)].rpartition("/")[0]
    filesystem, base = fs.FileSystem.from_uri(f"{scheme}://{fixed}")
    listed = filesystem.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
    names = [entry.path[len(base) :].lstrip("/") for entry in listed if entry.type == fs.FileType.File]
    return [f"{scheme}://{fixed}/{name}" for name in names if fnmatch.fnmatchcase(f"{fixed}/{name}", rest)]
