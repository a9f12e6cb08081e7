"""Peak memory of this process."""

import resource
from pathlib import Path


def peak_rss_bytes() -> int:
    """Largest resident set this process ever had, in bytes.

    Read from the kernel's high-water mark of this address space. `getrusage` is only the fallback:
    its figure survives exec, so a small child of a large parent would report its parent's peak.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
