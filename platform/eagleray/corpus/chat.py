"""From chat turns to the ids that the target reads: the tokenizer's own chat template, and nothing else.

A row that the template cannot show is refused with a reason, never shown in part. Whether a turn is
shown is found by exchange: rendered once more with marks for texts, a mark that is missing is a turn
that is missing. Texts themselves are never searched for, because they may occur twice.
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from eagleray.corpus.prompt import ASSISTANT, Message, Prompt, Reject, ToolCall
from eagleray.errors import ArtifactError, DataError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

MARK = "\ue000{}\ue001"
"""Private-use characters around a number: text that no template writes or trims."""

_REMEMBERED_SHAPES = 4096

TemplateArguments = Mapping[str, bool | int | float | str]


class RenderError(DataError):
    """A chat template cannot show these turns. The message is the reason alone, for reject tables."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedPrompt:
    """A prompt and the ids that ask the target for its answer."""

    prompt: Prompt
    prompt_ids: tuple[int, ...]


class ChatTemplate:
    """How a target is addressed: its tokenizer, whose chat template gets the same arguments every time.

    Args of the constructor:
        arguments: What servers take as `chat_template_kwargs`, e.g. `enable_thinking`.
    """

    def __init__(self, tokenizer: Any, arguments: TemplateArguments | None = None):
        self.tokenizer = tokenizer
        self.arguments = dict(arguments or {})
        self._control_ids = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
        self._verdicts: dict[Any, str] = {}
        self._closings: dict[Any, str] = {}

    def ask(self, messages: Sequence[Message], tools: str = "") -> str:
        """Return the text of the turns, followed by the template's request for an answer.

        Raises:
            RenderError: The template refuses the turns or leaves a part of them out.
        """
        text = self._render(messages, tools, ask=True)
        shape = (_shape(messages), tools)
        if shape not in self._verdicts:
            _make_room(self._verdicts)
            self._verdicts[shape] = self._left_out(messages, tools, text)
        if self._verdicts[shape]:
            raise RenderError(self._verdicts[shape])
        return text

    def answered(self, messages: Sequence[Message], tools: str = "") -> str:
        """Return the text of turns of which the last is an answer.

        Raises:
            RenderError: The template refuses the turns.
        """
        return self._render(messages, tools, ask=False)

    def closing(self, history: Sequence[Message], tools: str = "") -> str:
        """Return what the template writes after an answer to these turns, from its last character on.

        Raises:
            RenderError: The template refuses or does not show an answer here.
        """
        shape = (_shape(history), tools)
        if shape not in self._closings:
            _make_room(self._closings)
            mark = MARK.format(0)
            text = self._render((*history, Message(ASSISTANT, mark)), tools, ask=False)
            _, shown, self._closings[shape] = text.partition(mark)
            if not shown:
                del self._closings[shape]
                raise RenderError("the chat template does not show the answer")
        return self._closings[shape]

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a rendered text; nothing is added to it."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens included."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def show(self, ids: Sequence[int]) -> str:
        """The text of ids as a reader of the answer sees it, without control tokens."""
        return self.decode([token for token in ids if token not in self._control_ids])

    def decode_after(self, context_ids: Sequence[int], ids: Sequence[int]) -> str:
        """The text that ids add to a context: some tokenizers drop the space that a text begins with."""
        anchor = list(context_ids[-1:])
        return self.decode([*anchor, *ids]).removeprefix(self.decode(anchor))

    def encode_after(self, context: str, context_ids: tuple[int, ...], text: str) -> tuple[int, ...]:
        """Ids of a text that follows a context, cut at the boundary even where one piece would span it."""
        together = self.encode(context + text)
        if together[: len(context_ids)] == context_ids:
            return together[len(context_ids) :]
        return self.encode(text)

    def is_control(self, token_id: int) -> bool:
        """True for ids that mark structure, such as the end of a turn, instead of spelling text."""
        return token_id in self._control_ids

    def _render(self, messages: Sequence[Message], tools: str, *, ask: bool) -> str:
        try:
            text: str = self.tokenizer.apply_chat_template(
                [_to_turn(message) for message in messages],
                tools=json.loads(tools) if tools else None,
                tokenize=False,
                add_generation_prompt=ask,
                **self.arguments,
            )
        except (TemplateError, TypeError, LookupError, ValueError, AttributeError) as error:
            raise RenderError(
                f"the chat template refuses the turns ({type(error).__name__}: {error})"
            ) from None
        return text

    def _left_out(self, messages: Sequence[Message], tools: str, text: str) -> str:
        """Name what is missing of the turns in their rendered text; empty when nothing is."""
        marked = [
            dataclasses.replace(message, content=MARK.format(index)) if message.content else message
            for index, message in enumerate(messages)
        ]
        shown = self._render(marked, tools, ask=True)
        for index, message in enumerate(messages):
            if message.content and MARK.format(index) not in shown:
                return f"the chat template leaves out turn {index} (role {message.role!r})"
            silent = dataclasses.replace(message, tool_calls=())
            changed = [*messages[:index], silent, *messages[index + 1 :]]
            if message.tool_calls and self._is_same(text, changed, tools):
                return f"the chat template does not show the tool_calls of turn {index}"
        if tools and self._is_same(text, messages, ""):
            return "the chat template does not show the tools on offer"
        return ""

    def _is_same(self, text: str, messages: Sequence[Message], tools: str) -> bool:
        try:
            return self._render(messages, tools, ask=True) == text
        except RenderError:
            return False


def render_prompts(
    chat: ChatTemplate, prompts: Iterable[Prompt]
) -> tuple[list[RenderedPrompt], list[Reject]]:
    """Render every prompt; what the template cannot show becomes a reject."""
    rendered: list[RenderedPrompt] = []
    rejects: list[Reject] = []
    for prompt in prompts:
        try:
            ids = chat.encode(chat.ask(prompt.messages, prompt.tools))
        except RenderError as error:
            rejects.append(reject_of(prompt, str(error)))
            continue
        rendered.append(RenderedPrompt(prompt=prompt, prompt_ids=ids))
    return rendered, rejects


def reject_of(prompt: Prompt, reason: str) -> Reject:
    """The reject of a prompt that was read well and failed later."""
    return Reject(origin=f"{prompt.source} [{prompt.prompt_id}]", reason=reason)


def template_hash(chat: ChatTemplate) -> str:
    """Hash of the chat template's text and arguments.

    Raises:
        ArtifactError: The tokenizer has no chat template.
    """
    template = chat.tokenizer.get_chat_template()
    if not template:
        raise ArtifactError(
            "The tokenizer of the target has no chat template; use an instruction-tuned target."
        )
    arguments = json.dumps(chat.arguments, sort_keys=True) if chat.arguments else ""
    return hashlib.sha256((template + arguments).encode()).hexdigest()[:16]


def tokenizer_hash(folder: Path) -> str:
    """Hash of the tokenizer files in a target folder.

    Raises:
        ArtifactError: The folder holds no tokenizer.
    """
    present = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if folder / "tokenizer.json" not in present:
        raise ArtifactError(
            f"{folder} holds no tokenizer.json; expected a Hugging Face folder with a fast tokenizer. "
            "Check target.model."
        )
    digest = hashlib.sha256()
    for file in present:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _to_turn(message: Message) -> dict[str, Any]:
    """The turn as templates expect it; a field that is empty is absent, so `is defined` tests work."""
    optional = {
        "reasoning_content": message.reasoning,
        "tool_calls": [_to_call(call) for call in message.tool_calls],
        "name": message.name,
        "tool_call_id": message.tool_call_id,
    }
    present = {key: value for key, value in optional.items() if value}
    return {"role": message.role, "content": message.content, **present}


def _to_call(call: ToolCall) -> dict[str, Any]:
    """A call with its arguments as an object, where they are one: templates print them as JSON."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = call.arguments
    if not isinstance(arguments, dict):
        arguments = call.arguments
    present = {"id": call.call_id} if call.call_id else {}
    return {**present, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _shape(messages: Sequence[Message]) -> tuple[Any, ...]:
    """What decides which turns a template shows: roles and which parts they have, not their words."""
    return tuple(
        (message.role, bool(message.content), bool(message.reasoning), len(message.tool_calls))
        for message in messages
    )


def _make_room(remembered: dict[Any, Any]) -> None:
    if len(remembered) >= _REMEMBERED_SHAPES:
        for key in list(itertools.islice(remembered, _REMEMBERED_SHAPES // 2)):
            del remembered[key]
