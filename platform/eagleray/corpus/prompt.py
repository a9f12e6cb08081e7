"""One prompt: the chat turns that the target is asked to continue, and where they come from.

A prompt may carry the answer that its row came with. Regenerating drops it; keeping it records that
the target did not say it.
"""

import hashlib
import json
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from eagleray.corpus.config import AnswersFrom

AnswerOrigin = Literal["target", "retokenised", "mismatched", "given"]
"""Where the ids of an answer come from: emitted by the target; its text tokenised again, which agrees with
how many tokens it emitted, or does not; or given by whoever filled the input row (off-policy)."""

FinishReason = Literal["stop", "length"]

ASSISTANT = "assistant"
"""Role of the turns that the target writes."""

TOOL = "tool"
"""Role of the turns that give the result of a tool call."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant turn asks for."""

    name: str
    arguments: str
    """JSON text, also where the row held an object."""
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat turn. Content that was null is empty text."""

    role: str
    content: str
    reasoning: str = ""
    """Thoughts that the row kept in a field of their own. Thoughts inside `content` stay there."""
    tool_calls: tuple[ToolCall, ...] = ()
    name: str = ""
    tool_call_id: str = ""
    """Which call a tool turn answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """Chat turns that wait for an answer."""

    messages: tuple[Message, ...]
    category: str
    """Family under which results are pooled."""
    source: str
    """Where the text comes from, precise enough to find it again."""
    licence: str
    tools: str = ""
    """JSON list of the tools on offer; empty for none."""
    given: tuple[Message, ...] = ()
    """Assistant turns that followed in the row: its own answer."""
    given_finish_reason: FinishReason = "stop"
    """`length` when the given answer was cut at a token limit."""
    repeat: int = 0
    """Prompts of the same content key drawn before this one; above 0 only where duplicates are kept."""

    @property
    def prompt_id(self) -> str:
        """Hash of what the target is asked, so a prompt has one id whatever file it came from."""
        return _digest(self._spelled(self.messages))

    @property
    def conversation_id(self) -> str:
        """Hash of what the target is asked and the given answer."""
        return _digest(
            [*self._spelled(self.messages + self.given), len(self.given), self.given_finish_reason]
        )

    @property
    def content_key(self) -> str:
        """Hash of the turns without case, width and spacing: prompts with one key are the same prompt."""
        return _digest([_spell(message, normalise(message.content)) for message in self.messages])

    def _spelled(self, messages: Iterable[Message]) -> list[Any]:
        extras = [extra for extra in (self.tools, self.repeat) if extra]
        return [*(_spell(message, message.content) for message in messages), *extras]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reject:
    """A row that gave no prompt or no sample, and why."""

    origin: str
    """File and line, or the prompt's id."""
    reason: str


def least_true(origins: Iterable[AnswerOrigin]) -> AnswerOrigin:
    """What a sequence of several answers is called: by the one that is the furthest from emitted ids."""
    return max(origins, key=get_args(AnswerOrigin).index)


def content_id(prompt: Prompt, answers: AnswersFrom) -> str:
    """Hash of what a prompt contributes to a dataset: with kept answers, the answers too."""
    return prompt.conversation_id if answers == "keep" else prompt.prompt_id


def user_prompt(text: str, *, category: str, source: str, licence: str) -> Prompt:
    """Wrap one user turn."""
    return Prompt(messages=(Message("user", text),), category=category, source=source, licence=licence)


def normalise(text: str) -> str:
    """Fold case, compatibility forms and runs of white space."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _spell(message: Message, content: str) -> list[Any]:
    calls = [[call.name, call.arguments] for call in message.tool_calls]
    extras = [extra for extra in (message.reasoning, calls, message.name) if extra]
    return [message.role, content, *extras]


def _digest(turns: list[Any]) -> str:
    return hashlib.sha256(json.dumps(turns).encode()).hexdigest()[:16]
