"""JSON that carries the hash of its own content, so that no changed bit goes unnoticed.

The first entry of the object is the seal: the SHA-256 of every byte after it. People can read the file
as any other; an edit by hand breaks the seal, as it should.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from eagleray.errors import DataError
from eagleray.files import to_json

_SEAL = re.compile(rb'\{\n "sha256": "([0-9a-f]{64})",\n')


class SealError(DataError):
    """Sealed JSON is not what was written. The message is a clause about the file."""


def seal(content: Mapping[str, Any]) -> bytes:
    """Spell a mapping that is not empty as JSON under its seal."""
    body = to_json(content).removeprefix("{\n").encode()
    return b'{\n "sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'",\n' + body


def unseal(found: bytes) -> dict[str, Any]:
    """Check the seal and return the mapping.

    Raises:
        SealError: A byte of it changed, or it never had a seal.
    """
    head = _SEAL.match(found)
    if head is None:
        raise SealError("it does not begin with a seal (`sha256`)")
    body = found[head.end() :]
    if hashlib.sha256(body).hexdigest().encode() != head[1]:
        raise SealError(f"its content does not have the SHA-256 {head[1][:16].decode()} that it states")
    content: dict[str, Any] = json.loads(b"{\n" + body)
    return content
