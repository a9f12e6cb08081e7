"""What differs between versions of SGLang, of all that we use. The one place where drift is met."""

from collections.abc import Mapping
from dataclasses import dataclass

from eagleray.errors import EngineError

CHAINS: Mapping[str, str] = {"eagle": "EAGLE", "eagle3": "EAGLE3", "mtp": "NEXTN"}
"""Our algorithms that draft token after token, and SGLang's names for them."""
BLOCKS: Mapping[str, str] = {"dflash": "DFLASH", "dflash2": "DFLASH"}
"""Those that draft a block at once; SGLang counts the anchor as one of its tokens."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """From one version on."""

    since: tuple[int, ...]
    accepted: str
    """Field of an answer's `meta_info` with the accepted draft tokens, bonus excluded."""
    histogram: str
    """How many verifications accepted 0, 1, ... draft tokens."""
    algorithms: Mapping[str, str]
    """Of ours, those that it serves."""


RELEASES = (
    Release(
        since=(0, 5, 10),
        accepted="spec_accept_token_num",
        histogram="spec_accept_histogram",
        algorithms=CHAINS,
    ),
    Release(
        since=(0, 5, 15),
        accepted="spec_num_correct_drafts",
        histogram="spec_correct_drafts_histogram",
        algorithms={**CHAINS, **BLOCKS},
    ),
)
"""Oldest first. 0.5.11 to 0.5.14 were not looked at and count as 0.5.10."""

NEWEST_KNOWN = (0, 5, 23)
"""Newer versions are run as this one; `python -m jobs.doctor` says whether all we use is still there."""


def release_of(version: str) -> Release:
    """What holds for an installed version.

    Raises:
        EngineError: It is older than what we know.
    """
    installed = parse(version)
    for release in reversed(RELEASES):
        if installed >= release.since:
            return release
    oldest = ".".join(map(str, RELEASES[0].since))
    raise EngineError(
        f"SGLang {version} is installed; EagleRay knows {oldest} and later. Install a newer one."
    )


def parse(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 0.5.23.post1 is (0, 5, 23)."""
    numbers: list[int] = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
