"""Ends a group of processes once the process that started it is gone, however it went.

A process that is killed cleans nothing up, and a signal at the parent's death comes already when the thread
ends that forked. Here a shell, nobody's child, waits at the reading end of a pipe: the kernel closes the
writing end with the process that holds it.
"""

import contextlib
import subprocess

WAIT_S = 10
"""Between asking a group to end and killing it."""

_SCRIPT = f"""
exec 3<&0
{{
    read -r group <&3 || exit
    read -r released <&3 && exit
    kill -s TERM -- "-$group"
    left={WAIT_S}
    while [ "$left" -gt 0 ]; do
        sleep 1
        kill -s 0 -- "-$group" || exit
        left=$((left - 1))
    done
    kill -s KILL -- "-$group"
}} </dev/null >/dev/null 2>&1 &
"""


class Guard:
    """Waits for the end of this process, from before there is anything to guard."""

    def __init__(self) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._shell.wait()

    def watch(self, group: int) -> None:
        """Name the process group."""
        self._tell(f"{group}\n")

    def release(self) -> None:
        """There is nothing to end any more; the second call does nothing."""
        self._tell("released\n")
        assert self._shell.stdin is not None
        self._shell.stdin.close()

    def _tell(self, line: str) -> None:
        assert self._shell.stdin is not None
        if self._shell.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            self._shell.stdin.write(line.encode())
            self._shell.stdin.flush()
