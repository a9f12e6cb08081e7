"""One prompt: the chat turns that the target is asked to continue, and where they come from."""

import hashlib
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """One chat turn. Content that was null is empty text."""

    role: str
    content: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """Chat turns that wait for an answer."""

    messages: tuple[Message, ...]
    category: str
    """Family under which results are pooled."""
    source: str
    """Where the text comes from, precise enough to find it again."""
    licence: str

    @property
    def prompt_id(self) -> str:
        """Hash of the turns alone, so the same prompt has the same id whatever file it came from."""
        return _digest([(message.role, message.content) for message in self.messages])

    @property
    def content_key(self) -> str:
        """Hash of the turns without case, width and spacing: prompts with one key are the same prompt."""
        return _digest([(message.role, normalise(message.content)) for message in self.messages])


@dataclass(frozen=True, kw_only=True, slots=True)
class Reject:
    """A row that gave no prompt, and why."""

    origin: str
    """File and line, or the prompt's id."""
    reason: str


def user_prompt(text: str, *, category: str, source: str, licence: str) -> Prompt:
    """Wrap one user turn."""
    return Prompt(messages=(Message("user", text),), category=category, source=source, licence=licence)


def normalise(text: str) -> str:
    """Fold case, compatibility forms and runs of white space."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _digest(turns: Sequence[tuple[str, str]]) -> str:
    return hashlib.sha256(json.dumps(turns).encode()).hexdigest()[:16]
