"""Where a dataset lies: a folder of this machine or a storage address, each file written whole or not at all.

A name is a path inside the folder, such as `journal/shard-000012.json`. Readers never meet a half-written
file: locally it is written aside, flushed and renamed; object stores show an object once it is closed; any
other file system gets the file aside and then moves it.
"""

import itertools
import os
import re
import shutil
from pathlib import Path, PurePosixPath
from typing import Protocol

import pyarrow as pa
from pyarrow import fs

from eagleray.errors import DataError
from eagleray.files import move_aside, write_atomically

ATOMIC_STORES = frozenset({"s3", "gcs", "abfs"})
"""File systems of pyarrow where a file appears at the moment that it is closed, whole."""

_LEFTOVER = re.compile(r"\..+\.\d+")
"""Name of a file that was being written aside: `.<name>.<process id>`."""


class Storage(Protocol):
    """A folder of small files."""

    address: str
    """What `open_storage` takes to open it again, in any process."""

    def read(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            FileNotFoundError: There is none of that name.
        """
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write or replace a file; a kill at any instant leaves the old content or the new."""
        ...

    def exists(self, name: str) -> bool:
        """True when there is a file of that name."""
        ...

    def names(self, folder: str = "") -> list[str]:
        """Names of the files in a folder, sorted; none when there is no such folder. Hidden ones are left
        out."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file, if there is one."""
        ...

    def move_aside(self, name: str, folder: str) -> None:
        """Move a file into `folder` under a name that nothing there has."""
        ...

    def sweep(self, folder: str = "") -> None:
        """Delete what killed writers left half-written in a folder."""
        ...

    def discard(self) -> None:
        """Delete everything."""
        ...

    def locate(self, name: str) -> str:
        """The file's full address, for messages."""
        ...


def open_storage(address: str | Path) -> Storage:
    """Open a folder of this machine, or of whatever pyarrow reads: `s3://`, `gs://`, `hdfs://`, `file://`.

    Raises:
        DataError: The address is not one that pyarrow understands, or its store cannot be reached.
    """
    if "://" not in str(address):
        return LocalFolder(Path(address))
    filesystem, base = open_filesystem(str(address), "distil.dataset")
    if isinstance(filesystem, fs.LocalFileSystem):
        return LocalFolder(Path(base))
    return RemoteFolder(filesystem, base, str(address))


def open_filesystem(address: str, setting: str) -> tuple[fs.FileSystem, str]:
    """The file system of an address, and the folder as that spells it.

    Args:
        setting: What named the address, for the message.

    Raises:
        DataError: The address is not one that pyarrow understands, or its store cannot be reached.
    """
    try:
        filesystem, base = fs.FileSystem.from_uri(address)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"Storage address {address} cannot be opened: {error}. Expected a path or an address such as "
            f"s3://bucket/folder. Change {setting}."
        ) from None
    return filesystem, base


class LocalFolder:
    """A folder of this machine or of a file system that it has mounted."""

    def __init__(self, path: Path):
        self.path = path
        self.address = str(path)

    def __str__(self) -> str:
        return self.address

    def read(self, name: str) -> bytes:
        """The content of a file."""
        return (self.path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """Write aside, flush, rename."""
        write_atomically(self.path / name, lambda aside: _write_bytes(aside, content))

    def exists(self, name: str) -> bool:
        """True when there is a file of that name."""
        return (self.path / name).is_file()

    def names(self, folder: str = "") -> list[str]:
        """Names of the files in a folder."""
        return [name for name in self._all_names(folder) if not PurePosixPath(name).name.startswith(".")]

    def delete(self, name: str) -> None:
        """Delete a file, if there is one."""
        (self.path / name).unlink(missing_ok=True)

    def move_aside(self, name: str, folder: str) -> None:
        """Rename into `folder`."""
        move_aside(self.path / name, self.path / folder)

    def sweep(self, folder: str = "") -> None:
        """Delete what killed writers left half-written in a folder."""
        for name in self._all_names(folder):
            if _LEFTOVER.fullmatch(PurePosixPath(name).name):
                self.delete(name)

    def discard(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def locate(self, name: str) -> str:
        """The file's path."""
        return str(self.path / name)

    def _all_names(self, folder: str) -> list[str]:
        place = self.path / folder
        if not place.is_dir():
            return []
        return sorted(
            str(PurePosixPath(folder, entry.name)) for entry in os.scandir(place) if entry.is_file()
        )


class RemoteFolder:
    """A folder of a pyarrow file system.

    Args:
        base: The folder, as the file system spells it.
        address: The address that leads to both.
    """

    def __init__(self, filesystem: fs.FileSystem, base: str, address: str):
        self.address = address
        self._filesystem = filesystem
        self._base = base.rstrip("/")

    @property
    def closes_atomically(self) -> bool:
        """True when a file appears at the moment that it is closed, whole."""
        return self._filesystem.type_name in ATOMIC_STORES

    def __str__(self) -> str:
        return self.address

    def read(self, name: str) -> bytes:
        """The content of a file."""
        with self._filesystem.open_input_stream(self._path(name)) as stream:
            content: bytes = stream.read()
            return content

    def write(self, name: str, content: bytes) -> None:
        """Write an object, or a file aside that is then moved."""
        path = PurePosixPath(self._path(name))
        if self.closes_atomically:
            self._fill(str(path), content)
            return
        self._filesystem.create_dir(str(path.parent), recursive=True)
        aside = str(path.with_name(f".{path.name}.{os.getpid()}"))
        self._fill(aside, content)
        self._filesystem.move(aside, str(path))

    def exists(self, name: str) -> bool:
        """True when there is a file of that name."""
        return bool(self._filesystem.get_file_info(self._path(name)).type == fs.FileType.File)

    def names(self, folder: str = "") -> list[str]:
        """Names of the files in a folder."""
        return [name for name in self._all_names(folder) if not PurePosixPath(name).name.startswith(".")]

    def delete(self, name: str) -> None:
        """Delete a file, if there is one."""
        if self.exists(name):
            self._filesystem.delete_file(self._path(name))

    def move_aside(self, name: str, folder: str) -> None:
        """Move into `folder`."""
        self._filesystem.create_dir(self._path(folder), recursive=True)
        copies = (f"{folder}/{PurePosixPath(name).name}.{number}" for number in itertools.count(1))
        self._filesystem.move(
            self._path(name), self._path(next(copy for copy in copies if not self.exists(copy)))
        )

    def sweep(self, folder: str = "") -> None:
        """Delete what killed writers left half-written in a folder."""
        for name in self._all_names(folder):
            if _LEFTOVER.fullmatch(PurePosixPath(name).name):
                self.delete(name)

    def discard(self) -> None:
        """Delete the folder."""
        self._filesystem.delete_dir_contents(self._base, missing_dir_ok=True)

    def locate(self, name: str) -> str:
        """The file's address."""
        return f"{self.address.rstrip('/')}/{name}"

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    def _fill(self, path: str, content: bytes) -> None:
        with self._filesystem.open_output_stream(path) as stream:
            stream.write(content)

    def _all_names(self, folder: str) -> list[str]:
        listed = self._filesystem.get_file_info(fs.FileSelector(self._path(folder), allow_not_found=True))
        files = (entry for entry in listed if entry.type == fs.FileType.File)
        return sorted(str(PurePosixPath(folder, entry.base_name)) for entry in files)


def _write_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)
