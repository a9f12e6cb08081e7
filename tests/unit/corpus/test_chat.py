from pathlib import Path
from typing import Any

import jinja2
import pytest

from eagleray.corpus.chat import RenderError, render_prompt, render_prompts, template_hash, tokenizer_hash
from eagleray.corpus.prompt import Message, user_prompt
from eagleray.errors import ArtifactError

CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] != 'tool' %}<{{ m['role'] }}>{{ m['content'] | trim }}</>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
STRICT_TEMPLATE = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}ok"


class CharacterTokenizer:
    """One id per character; renders templates as transformers does."""

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


def _ids(text: str) -> tuple[int, ...]:
    return tuple(ord(character) for character in text)


def test_a_prompt_ends_with_the_request_for_an_answer_and_gets_no_extra_special_tokens() -> None:
    ids = render_prompt(CharacterTokenizer(CHAT_TEMPLATE), [Message("user", "Hi")])
    assert ids == _ids("<user>Hi</><assistant>")


def test_empty_content_is_shown_as_empty_text() -> None:
    ids = render_prompt(CharacterTokenizer(CHAT_TEMPLATE), [Message("system", ""), Message("user", "Hi")])
    assert ids == _ids("<system></><user>Hi</><assistant>")


def test_a_turn_that_the_template_drops_is_an_error_not_a_shorter_prompt() -> None:
    turns = [Message("user", "Weather?"), Message("tool", "temp_c 4"), Message("user", "And now?")]
    with pytest.raises(RenderError, match=r"leaves out turn 1 \(role 'tool'\)"):
        render_prompt(CharacterTokenizer(CHAT_TEMPLATE), turns)


def test_what_the_template_refuses_becomes_a_reject_with_the_templates_words() -> None:
    system = user_prompt("Hi", category="c", source="file:3", licence="l")
    bad = type(system)(messages=(Message("system", "x"),), category="c", source="file:3", licence="l")
    good = user_prompt("ok", category="c", source="file:4", licence="l")
    rendered, rejects = render_prompts(CharacterTokenizer(STRICT_TEMPLATE), [bad, good])
    assert [item.prompt for item in rendered] == [good]
    assert "file:3" in rejects[0].origin
    assert "no system" in rejects[0].reason


def test_the_template_hash_follows_the_template() -> None:
    one, two = CharacterTokenizer("a"), CharacterTokenizer("b")
    assert template_hash(one) == template_hash(CharacterTokenizer("a"))
    assert template_hash(one) != template_hash(two)
    with pytest.raises(ArtifactError, match="chat template"):
        template_hash(CharacterTokenizer(""))


def test_the_tokenizer_hash_covers_every_tokenizer_file_and_needs_one(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        tokenizer_hash(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    alone = tokenizer_hash(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("x")
    assert tokenizer_hash(tmp_path) != alone
