"""A target's identity: what a cache key must hold so that another model can never pass for it."""

import hashlib
from pathlib import Path

IDENTITY_FILES = ("config.json", "*.safetensors")


def target_hash(folder: Path) -> str:
    """Hash configuration and weights of a target folder to 16 hexadecimal digits (about 1 s per GB)."""
    digest = hashlib.sha256()
    for pattern in IDENTITY_FILES:
        for path in sorted(folder.glob(pattern)):
            digest.update(f"{path.name}\n".encode())
            with path.open("rb") as stream:
                while chunk := stream.read(1 << 22):
                    digest.update(chunk)
    return digest.hexdigest()[:16]
