"""Every family spelled out: the whole text of each sequence, with what is learnt between « and »."""

from typing import Any

import pytest

from eagleray.corpus.chat import RenderError
from eagleray.corpus.config import SupervisionConfig
from eagleray.corpus.given_answers import given_turns
from eagleray.corpus.prompt import ASSISTANT, Message, Prompt, ToolCall
from eagleray.corpus.supervision import to_sequences

REPEATED = (
    Message("system", "Be terse."),
    Message("user", "A?"),
    Message(ASSISTANT, "Yes."),
    Message("user", "Yes."),
    Message(ASSISTANT, "Yes."),
)
THOUGHTFUL = (
    Message("user", "A?"),
    Message(ASSISTANT, "B.", reasoning="Hm."),
    Message("user", "C?"),
    Message(ASSISTANT, "D.", reasoning="Ok."),
)
CALL = ToolCall("get_weather", '{"city": "Oslo"}', "c1")
WEATHER = (
    Message("user", "Weather in Oslo?"),
    Message(ASSISTANT, "", tool_calls=(CALL,)),
    Message("tool", '{"temp_c":4}', tool_call_id="c1"),
    Message(ASSISTANT, "It is 4 C."),
)
THOUGHTFUL_WEATHER = (
    WEATHER[0],
    Message(ASSISTANT, "", reasoning="Look it up.", tool_calls=(CALL,)),
    WEATHER[2],
    Message(ASSISTANT, "It is 4 C.", reasoning="Done."),
)
TOOLS = '[{"name": "get_weather"}]'

CHATML = (
    "<|im_start|>system\nBe terse.<|im_end|>\n<|im_start|>user\nA?<|im_end|>\n"
    "<|im_start|>assistant\n«Yes.<|im_end|>»\n<|im_start|>user\nYes.<|im_end|>\n"
    "<|im_start|>assistant\n«Yes.<|im_end|>»\n"
)
LLAMA3_ASKED = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe terse.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nA?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
LLAMA3_TOOLS_ASKED = (
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
    'You may call: [{"name": "get_weather"}]\n\nWeather in Oslo?<|eot_id|>'
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
LLAMA3_CALL = '{"name": "get_weather", "parameters": {"city": "Oslo"}}<|eot_id|>'
QWEN3_ASKED = (
    "<|im_start|>system\nBe terse.<|im_end|>\n<|im_start|>user\nA?<|im_end|>\n<|im_start|>assistant\n"
)
QWEN3_ASKED_AGAIN = QWEN3_ASKED + "Yes.<|im_end|>\n<|im_start|>user\nYes.<|im_end|>\n<|im_start|>assistant\n"
QWEN3_TOOLS_ASKED = (
    '<|im_start|>system\n# Tools\n{"name": "get_weather"}\n<|im_end|>\n'
    "<|im_start|>user\nWeather in Oslo?<|im_end|>\n<|im_start|>assistant\n"
)
QWEN3_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>'
QWEN3_RESULT = (
    '\n<|im_start|>user\n<tool_response>\n{"temp_c":4}\n</tool_response><|im_end|>\n<|im_start|>assistant\n'
)
NO_THOUGHTS = "<think>\n\n</think>\n\n"

Case = tuple[str, dict[str, Any], tuple[Message, ...], str, list[str]]
EXACT: list[Case] = [
    ("smollm2", {}, REPEATED, "", [CHATML]),
    ("chatml", {}, REPEATED, "", [CHATML]),
    ("chatml_marked", {}, REPEATED, "", [CHATML]),
    (
        "gemma",
        {},
        REPEATED[1:],
        "",
        [
            "<bos><start_of_turn>user\nA?<end_of_turn>\n<start_of_turn>model\n«Yes.<end_of_turn>»\n"
            "<start_of_turn>user\nYes.<end_of_turn>\n<start_of_turn>model\n«Yes.<end_of_turn>»\n"
        ],
    ),
    (  # the system text moves to the last user turn, so history changes
        "mistral",
        {},
        REPEATED,
        "",
        [
            "<s>[INST] Be terse.\n\nA?[/INST]« Yes.</s>»",
            "<s>[INST] A?[/INST] Yes.</s>[INST] Be terse.\n\nYes.[/INST]« Yes.</s>»",
        ],
    ),
    (
        "mistral",
        {},
        WEATHER,
        TOOLS,
        [
            '<s>[AVAILABLE_TOOLS] [{"name": "get_weather"}][/AVAILABLE_TOOLS][INST] Weather in Oslo?[/INST]'
            '«[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "c1"}]</s>»'
            '[TOOL_RESULTS] {"content": "{\\"temp_c\\":4}", "call_id": "c1"}[/TOOL_RESULTS]'
            "« It is 4 C.</s>»"
        ],
    ),
    (  # the request ends in one piece of two line breaks, which is another before a letter
        "llama3",
        {},
        REPEATED,
        "",
        [
            LLAMA3_ASKED + "«Yes.<|eot_id|>»",
            LLAMA3_ASKED + "Yes.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nYes.<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n«Yes.<|eot_id|>»",
        ],
    ),
    (
        "llama3",
        {},
        WEATHER,
        TOOLS,
        [
            LLAMA3_TOOLS_ASKED + f"«{LLAMA3_CALL}»",
            LLAMA3_TOOLS_ASKED
            + LLAMA3_CALL
            + '<|start_header_id|>ipython<|end_header_id|>\n\n"{\\"temp_c\\":4}"<|eot_id|>'
            "<|start_header_id|>assistant<|end_header_id|>\n\n«It is 4 C.<|eot_id|>»",
        ],
    ),
    (
        "qwen3",
        {},
        REPEATED,
        "",
        [
            QWEN3_ASKED + f"«{NO_THOUGHTS}Yes.<|im_end|>»\n",
            QWEN3_ASKED_AGAIN + f"«{NO_THOUGHTS}Yes.<|im_end|>»\n",
        ],
    ),
    (
        "qwen3",
        {"enable_thinking": False},
        REPEATED,
        "",
        [
            QWEN3_ASKED + f"{NO_THOUGHTS}«Yes.<|im_end|>»\n",
            QWEN3_ASKED_AGAIN + f"{NO_THOUGHTS}«Yes.<|im_end|>»\n",
        ],
    ),
    (  # old thoughts are not shown
        "qwen3",
        {},
        THOUGHTFUL,
        "",
        [
            "<|im_start|>user\nA?<|im_end|>\n<|im_start|>assistant\n"
            "«<think>\nHm.\n</think>\n\nB.<|im_end|>»\n",
            "<|im_start|>user\nA?<|im_end|>\n<|im_start|>assistant\nB.<|im_end|>\n"
            "<|im_start|>user\nC?<|im_end|>\n<|im_start|>assistant\n"
            "«<think>\nOk.\n</think>\n\nD.<|im_end|>»\n",
        ],
    ),
    (
        "qwen3",
        {},
        WEATHER,
        TOOLS,
        [
            QWEN3_TOOLS_ASKED + f"«{NO_THOUGHTS}{QWEN3_CALL}»\n",
            QWEN3_TOOLS_ASKED + QWEN3_CALL + QWEN3_RESULT + f"«{NO_THOUGHTS}It is 4 C.<|im_end|>»\n",
        ],
    ),
    (
        "qwen3",
        {"enable_thinking": False},
        WEATHER,
        TOOLS,
        [
            QWEN3_TOOLS_ASKED + f"{NO_THOUGHTS}«{QWEN3_CALL}»\n",
            QWEN3_TOOLS_ASKED + QWEN3_CALL + QWEN3_RESULT + f"{NO_THOUGHTS}«It is 4 C.<|im_end|>»\n",
        ],
    ),
    (  # thoughts since the last question stay, so both answers share a sequence
        "qwen3",
        {},
        THOUGHTFUL_WEATHER,
        TOOLS,
        [
            QWEN3_TOOLS_ASKED
            + f"«<think>\nLook it up.\n</think>\n\n{QWEN3_CALL}»"
            + QWEN3_RESULT
            + "«<think>\nDone.\n</think>\n\nIt is 4 C.<|im_end|>»\n",
        ],
    ),
]


def _prompt(turns: tuple[Message, ...], tools: str) -> Prompt:
    return Prompt(messages=turns[:-1], given=turns[-1:], tools=tools, category="c", source="s", licence="l")


def _shown(chat: Any, prompt: Prompt, config: SupervisionConfig) -> list[str]:
    """The text of each sequence with marks around what is learnt."""
    shown = []
    for sequence in to_sequences(given_turns(chat, prompt), config):
        text, at = "", 0
        for start, end in sequence.supervised:
            text += chat.decode(sequence.input_ids[at:start])
            text += "«" + chat.decode(sequence.input_ids[start:end]) + "»"
            at = end
        shown.append(text + chat.decode(sequence.input_ids[at:]))
    return shown


@pytest.mark.parametrize(("family", "arguments", "turns", "tools", "expected"), EXACT)
def test_sequences_are_these_and_this_is_learnt(
    open_chat: Any,
    family: str,
    arguments: dict[str, Any],
    turns: tuple[Message, ...],
    tools: str,
    expected: list[str],
) -> None:
    assert _shown(open_chat(family, **arguments), _prompt(turns, tools), SupervisionConfig()) == expected


@pytest.mark.parametrize(("family", "arguments", "turns", "tools", "expected"), EXACT)
def test_learning_the_last_turn_leaves_only_the_last_mark(
    open_chat: Any,
    family: str,
    arguments: dict[str, Any],
    turns: tuple[Message, ...],
    tools: str,
    expected: list[str],
) -> None:
    before, _, learnt = expected[-1].rpartition("«")
    last = before.replace("«", "").replace("»", "") + "«" + learnt
    shown = _shown(open_chat(family, **arguments), _prompt(turns, tools), SupervisionConfig(turns="last"))
    assert shown == [last]


def test_leaving_thoughts_out_moves_the_mark_behind_them(open_chat: Any) -> None:
    chat, config = open_chat("qwen3"), SupervisionConfig(thinking=False)
    assert _shown(chat, _prompt(THOUGHTFUL, ""), config) == [
        "<|im_start|>user\nA?<|im_end|>\n<|im_start|>assistant\n<think>\nHm.\n</think>\n\n«B.<|im_end|>»\n",
        "<|im_start|>user\nA?<|im_end|>\n<|im_start|>assistant\nB.<|im_end|>\n"
        "<|im_start|>user\nC?<|im_end|>\n<|im_start|>assistant\n"
        "<think>\nOk.\n</think>\n\n«D.<|im_end|>»\n",
    ]
    assert _shown(chat, _prompt(THOUGHTFUL_WEATHER, TOOLS), config) == [
        QWEN3_TOOLS_ASKED
        + f"<think>\nLook it up.\n</think>\n\n«{QWEN3_CALL}»"
        + QWEN3_RESULT
        + "<think>\nDone.\n</think>\n\n«It is 4 C.<|im_end|>»\n",
    ]


@pytest.mark.parametrize("thinking", [True, False])
def test_thoughts_are_the_same_in_the_text_and_in_a_field(open_chat: Any, thinking: bool) -> None:
    spelled = Message(ASSISTANT, "<think>\nHm.\n</think>\n\nB.")
    chat, config = open_chat("qwen3"), SupervisionConfig(thinking=thinking)
    assert _shown(chat, _prompt((THOUGHTFUL[0], spelled), ""), config) == _shown(
        chat, _prompt(THOUGHTFUL[:2], ""), config
    )


@pytest.mark.parametrize("family", ["smollm2", "chatml", "chatml_marked", "gemma"])
def test_families_without_tools_or_thoughts_say_so(open_chat: Any, family: str) -> None:
    chat = open_chat(family)
    with pytest.raises(RenderError, match=r"the tools on offer|role not supported: tool"):
        given_turns(chat, _prompt(WEATHER, TOOLS))
    with pytest.raises(RenderError, match=r"the tool_calls of turn 1|role not supported: tool"):
        given_turns(chat, _prompt(WEATHER, ""))
    with pytest.raises(RenderError, match="does not show the thoughts of turn 1"):
        given_turns(chat, _prompt(THOUGHTFUL, ""))


@pytest.mark.parametrize("family", ["llama3", "mistral"])
def test_families_with_tools_and_no_thoughts_say_so(open_chat: Any, family: str) -> None:
    with pytest.raises(RenderError, match="does not show the thoughts of turn 1"):
        given_turns(open_chat(family), _prompt(THOUGHTFUL_WEATHER, TOOLS))
