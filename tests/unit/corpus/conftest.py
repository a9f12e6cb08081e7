"""The embedded target's tokenizer, dressed with chat templates in the style of other families."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagleray.corpus.chat import ChatTemplate
from eagleray.targets.embedded import prepare_embedded
from eagleray.targets.loading import load_tokenizer

TEMPLATES = Path(__file__).parent / "templates"
CONTROL_TOKENS = {
    "chatml": (),
    "chatml_marked": (),
    "llama3": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "qwen3": ("<think>", "</think>", "<tool_call>", "</tool_call>"),
    "mistral": (
        *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
        *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    ),
    "gemma": ("<bos>", "<start_of_turn>", "<end_of_turn>"),
}

OpenChat = Callable[..., ChatTemplate]


@pytest.fixture(scope="session")
def open_chat() -> OpenChat:
    """Build the chat of a family: `smollm2` is the embedded target as it is."""
    tokenizers: dict[str, Any] = {}

    def build(family: str, **arguments: Any) -> ChatTemplate:
        if family not in tokenizers:
            tokenizer = load_tokenizer(prepare_embedded())
            if family != "smollm2":
                tokenizer.add_tokens(list(CONTROL_TOKENS[family]), special_tokens=family != "qwen3")
                tokenizer.chat_template = (TEMPLATES / f"{family}.jinja").read_text().removesuffix("\n")
            tokenizers[family] = tokenizer
        return ChatTemplate(tokenizers[family], arguments)

    return build
