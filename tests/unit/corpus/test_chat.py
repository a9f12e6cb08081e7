from pathlib import Path
from typing import Any, ClassVar

import jinja2
import pytest

from eagleray.corpus.chat import ChatTemplate, RenderError, render_prompts, template_hash, tokenizer_hash
from eagleray.corpus.prompt import Message, ToolCall, user_prompt
from eagleray.errors import ArtifactError

CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] != 'tool' %}<{{ m['role'] }}>{{ m['content'] | trim }}</>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
STRICT_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ messages[0]['content'] }}"
)


class CharacterTokenizer:
    """One id per character; renders templates as transformers does."""

    all_special_ids = (0,)
    added_tokens_decoder: ClassVar[dict[int, str]] = {}

    def __init__(self, chat_template: str) -> None:
        self.chat_template = chat_template

    def get_chat_template(self) -> str:
        return self.chat_template

    def apply_chat_template(self, turns: list[dict[str, str]], **options: Any) -> str:
        def raise_exception(message: str) -> None:
            raise jinja2.TemplateError(message)

        environment = jinja2.Environment(autoescape=False)
        environment.globals["raise_exception"] = raise_exception
        return environment.from_string(self.chat_template).render(messages=turns, **options)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [0] * add_special_tokens + [ord(character) for character in text]


def _chat(chat_template: str, **arguments: Any) -> ChatTemplate:
    return ChatTemplate(CharacterTokenizer(chat_template), arguments)


def _ids(text: str) -> tuple[int, ...]:
    return tuple(ord(character) for character in text)


def test_a_prompt_ends_with_the_request_for_an_answer_and_gets_no_extra_special_tokens() -> None:
    chat = _chat(CHAT_TEMPLATE)
    assert chat.encode(chat.ask([Message("user", "Hi")])) == _ids("<user>Hi</><assistant>")


def test_empty_content_is_shown_as_empty_text() -> None:
    text = _chat(CHAT_TEMPLATE).ask([Message("system", ""), Message("user", "Hi")])
    assert text == "<system></><user>Hi</><assistant>"


def test_a_turn_that_the_template_drops_is_an_error_not_a_shorter_prompt() -> None:
    turns = [Message("user", "Weather?"), Message("tool", "temp_c 4"), Message("user", "And now?")]
    with pytest.raises(RenderError, match=r"leaves out turn 1 \(role 'tool'\)"):
        _chat(CHAT_TEMPLATE).ask(turns)


def test_a_dropped_turn_is_noticed_even_if_another_turn_says_the_same() -> None:
    turns = [Message("user", "4"), Message("tool", "4"), Message("user", "4")]
    with pytest.raises(RenderError, match=r"leaves out turn 1"):
        _chat(CHAT_TEMPLATE).ask(turns)


def test_tool_calls_and_tools_that_the_template_ignores_are_errors() -> None:
    call = Message("assistant", "", tool_calls=(ToolCall("f", "{}"),))
    with pytest.raises(RenderError, match="does not show the tool_calls of turn 1"):
        _chat(CHAT_TEMPLATE).ask([Message("user", "Go"), call, Message("user", "And?")])
    with pytest.raises(RenderError, match="does not show the tools on offer"):
        _chat(CHAT_TEMPLATE).ask([Message("user", "Go")], '[{"name": "f"}]')


def test_a_verdict_on_one_conversation_is_not_taken_for_another_shape() -> None:
    chat = _chat(CHAT_TEMPLATE)
    assert chat.ask([Message("user", "a"), Message("tool", "")])
    with pytest.raises(RenderError):
        chat.ask([Message("user", "a"), Message("tool", "b")])
    assert chat.ask([Message("user", "a"), Message("tool", "")])


def test_what_the_template_refuses_becomes_a_reject_with_the_templates_words() -> None:
    system = user_prompt("Hi", category="c", source="file:3", licence="l")
    bad = type(system)(messages=(Message("system", "x"),), category="c", source="file:3", licence="l")
    good = user_prompt("ok", category="c", source="file:4", licence="l")
    rendered, rejects = render_prompts(_chat(STRICT_TEMPLATE), [bad, good])
    assert [item.prompt for item in rendered] == [good]
    assert "file:3" in rejects[0].origin
    assert "no system" in rejects[0].reason


def test_the_template_hash_follows_the_template_and_its_arguments() -> None:
    hashes = {template_hash(_chat("a")), template_hash(_chat("b")), template_hash(_chat("a", thinking=False))}
    assert len(hashes) == 3
    assert template_hash(_chat("a")) in hashes
    with pytest.raises(ArtifactError, match="chat template"):
        template_hash(_chat(""))


def test_the_tokenizer_hash_covers_every_tokenizer_file_and_needs_one(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        tokenizer_hash(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    alone = tokenizer_hash(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("x")
    assert tokenizer_hash(tmp_path) != alone
