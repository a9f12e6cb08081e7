"""A folder for what is read once: it goes with its owner, or, if that was killed, when the next one starts.

A lock says whether an owner lives: the kernel drops it with the process, also where another container with
process ids of its own shares the folder.
"""

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "eagleray-scratch-"
OWNER = "owner"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder of a name never used before in the machine's temporary folder (TMPDIR), and remove those
    of the dead."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        unlocked = folder / f"{OWNER}.new"
        with unlocked.open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            # Under its name only once it is locked: nobody ever finds it free while its owner lives.
            unlocked.rename(folder / OWNER)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    for owner in parent.glob(f"{PREFIX}*/{OWNER}"):
        # Another's, or gone meanwhile: whoever may remove it will.
        with contextlib.suppress(OSError), owner.open("r+") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(owner.parent, ignore_errors=True)
