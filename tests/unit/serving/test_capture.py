"""Live requests become prompts to distil: only when asked for, and only what the hook lets through."""

import sys
import types

import pytest

from eagleray.corpus.prompt import Prompt
from eagleray.corpus.prompt_files import read_prompts
from eagleray.errors import ConfigError
from eagleray.evaluation.endpoint.arrivals import read_gaps_s

CHAT = {"messages": [{"role": "user", "content": "My name is Ada."}]}


@pytest.fixture
def hook(monkeypatch):
    module = types.ModuleType("redaction")
    module.hide = lambda text: None if "secret" in text else text.replace("Ada", "[name]")
    monkeypatch.setitem(sys.modules, "redaction", module)


def captured(folder):
    return [
        row for row in read_prompts(str(folder / "*.jsonl"), "prompts", "unknown") if isinstance(row, Prompt)
    ]


def test_requests_are_kept_redacted_and_can_be_distilled(serve, tmp_path, hook):
    client = serve(capture={"folder": str(tmp_path), "redact": "redaction:hide", "rows_per_file": 2})
    client.post("/v1/chat/completions", CHAT)
    client.complete(prompt="a secret")
    client.complete(prompt=[1, 2])
    client.complete(prompt="")
    assert list(tmp_path.iterdir()) == []
    client.complete(prompt="Ada?", stream=True)
    prompts = captured(tmp_path)
    assert [prompt.messages[0].content for prompt in prompts] == ["My name is [name].", "[name]?"]
    assert {prompt.category for prompt in prompts} == {"live"}


def test_what_is_left_is_written_at_the_end(serve, tmp_path):
    client = serve(capture={"folder": str(tmp_path), "redact": "keep"})
    client.post("/v1/chat/completions", CHAT)
    client.service.close()
    assert [prompt.messages[0].content for prompt in captured(tmp_path)] == ["My name is Ada."]


def test_a_captured_load_can_be_replayed(serve, tmp_path):
    client = serve(capture={"folder": str(tmp_path), "redact": "keep"})
    for _ in range(3):
        client.post("/v1/chat/completions", CHAT)
    client.service.close()
    gaps_s = read_gaps_s(str(tmp_path / "*.jsonl"))
    assert len(gaps_s) == 2
    assert min(gaps_s) >= 0


def test_nothing_is_kept_unless_asked_for_and_redaction_must_be_said(serve, tmp_path):
    assert serve().service.capture is None
    with pytest.raises(ValueError, match="redact"):
        serve(capture={"folder": str(tmp_path)})
    with pytest.raises(ConfigError, match="nowhere:hide"):
        serve(capture={"folder": str(tmp_path), "redact": "nowhere:hide"})
