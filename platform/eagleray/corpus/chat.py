"""From chat turns to the ids that the target reads: the tokenizer's own chat template, and nothing else.

A row that the template cannot show is refused with a reason, never shown in part.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from eagleray.corpus.prompt import Message, Prompt, Reject
from eagleray.errors import ArtifactError, DataError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class RenderError(DataError):
    """A chat template cannot show these turns. The message is the reason alone, for reject tables."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedPrompt:
    """A prompt and the ids that ask the target for its answer."""

    prompt: Prompt
    prompt_ids: tuple[int, ...]


def render_prompt(tokenizer: Any, messages: Sequence[Message]) -> tuple[int, ...]:
    """Return the ids of the turns, followed by the template's request for an answer.

    Raises:
        RenderError: The template refuses the turns or leaves one out.
    """
    turns = [{"role": message.role, "content": message.content} for message in messages]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    except (TemplateError, TypeError, KeyError, ValueError) as error:
        raise RenderError(f"the chat template refuses the turns ({type(error).__name__}: {error})") from None
    for index, message in enumerate(messages):
        # Some templates drop the thoughts of earlier answers on purpose; what was asked must be there.
        if message.role != "assistant" and message.content.strip() not in text:
            raise RenderError(f"the chat template leaves out turn {index} (role {message.role!r})")
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def render_prompts(tokenizer: Any, prompts: Iterable[Prompt]) -> tuple[list[RenderedPrompt], list[Reject]]:
    """Render every prompt; what the template cannot show becomes a reject."""
    rendered: list[RenderedPrompt] = []
    rejects: list[Reject] = []
    for prompt in prompts:
        try:
            ids = render_prompt(tokenizer, prompt.messages)
        except RenderError as error:
            rejects.append(Reject(origin=f"{prompt.source} [{prompt.prompt_id}]", reason=str(error)))
            continue
        rendered.append(RenderedPrompt(prompt=prompt, prompt_ids=ids))
    return rendered, rejects


def template_hash(tokenizer: Any) -> str:
    """Hash of the chat template's text.

    Raises:
        ArtifactError: The tokenizer has no chat template.
    """
    template = tokenizer.get_chat_template()
    if not template:
        raise ArtifactError(
            "The tokenizer of the target has no chat template; use an instruction-tuned target."
        )
    return hashlib.sha256(template.encode()).hexdigest()[:16]


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
