"""JSON files that carry the hash of their own content, so that no changed bit goes unnoticed.

The first entry of the object is the seal: the SHA-256 of every byte after it. People can read the file
as any other; an edit by hand breaks the seal, as it should.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagleray.errors import DataError
from eagleray.files import to_json, write_text_atomically

_SEAL = re.compile(rb'\{\n "sha256": "([0-9a-f]{64})",\n')


class SealError(DataError):
    """A sealed file is not what was written."""


def write_sealed_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a mapping that is not empty, under its seal, atomically."""
    body = to_json(content).removeprefix("{\n")
    seal = hashlib.sha256(body.encode()).hexdigest()
    write_text_atomically(path, f'{{\n "sha256": "{seal}",\n{body}')


def read_sealed_json(path: Path) -> dict[str, Any]:
    """Read a mapping and check its seal.

    Raises:
        FileNotFoundError: There is no such file.
        SealError: A byte of it changed, or it never had a seal. The message is a clause about the file.
    """
    found = path.read_bytes()
    seal = _SEAL.match(found)
    if seal is None:
        raise SealError("it does not begin with a seal (`sha256`)")
    body = found[seal.end() :]
    if hashlib.sha256(body).hexdigest().encode() != seal[1]:
        raise SealError(f"its content does not have the SHA-256 {seal[1][:16].decode()} that it states")
    content: dict[str, Any] = json.loads(b"{\n" + body)
    return content
