"""Where a study is kept: a journal file beside the run, or a database by its address.

Only the driver of a sweep writes; the processes that measure never see the storage. So a slow or locked
storage delays the driver and fails no trial.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from sqlalchemy.exc import SQLAlchemyError

from eagleray.errors import ClusterError, ConfigError

JOURNAL = "study.journal"
LOCK_GRACE_S = 10
"""A journal lock this old was left by a driver that was killed while it wrote."""


def open_storage(address: str | None, folder: Path) -> optuna.storages.BaseStorage:
    """Open the storage of a sweep, mending what a killed driver left half written.

    Args:
        address: Of a database; None: the journal file in `folder`.

    Raises:
        ConfigError: The database cannot be opened.
    """
    if address is not None:
        try:
            return optuna.storages.get_storage(address)
        except (SQLAlchemyError, ImportError, ValueError, StorageInternalError) as error:
            raise ConfigError(
                f"study.storage {address!r} cannot be opened ({error}). Give an SQLAlchemy address whose "
                "driver is installed, or leave it out to keep a journal file."
            ) from error
    path = folder / JOURNAL
    folder.mkdir(parents=True, exist_ok=True)
    cut_torn_line(path)
    lock = JournalFileOpenLock(str(path), grace_period=LOCK_GRACE_S)
    return optuna.storages.JournalStorage(JournalFileBackend(str(path), lock_obj=lock))


def cut_torn_line(path: Path) -> None:
    """Remove the beginning of a record at the end of a journal: what a loss of power leaves of a write.

    What it was the beginning of never took effect, so nothing that was told is lost.
    """
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("r+b") as journal:
        content = journal.read()
        if not content.endswith(b"\n"):
            journal.truncate(content.rfind(b"\n") + 1)
            journal.flush()
            os.fsync(journal.fileno())


@contextmanager
def one_driver(folder: Path) -> Iterator[None]:
    """Hold a sweep's folder for this process: trials still running belong to a driver that is dead.

    Raises:
        ClusterError: Another process drives this sweep.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "driver.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(
                f"Another process drives the sweep in {folder}. Wait for it, end it, or give this one "
                "another run.name."
            ) from None
        yield
