"""Given answers at the edges: what begins, ends or is spelled in an unusual way, and what is refused."""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from eagleray.corpus.chat import ChatTemplate, RenderError
from eagleray.corpus.config import SupervisionConfig
from eagleray.corpus.given_answers import given_turns
from eagleray.corpus.prompt import ASSISTANT, Message, Prompt
from eagleray.corpus.supervision import TrainingSequence, to_sequences

ALL = SupervisionConfig()


def conversation(*messages: Message | tuple[str, str], **fields: Any) -> Prompt:
    turns = [turn if isinstance(turn, Message) else Message(*turn) for turn in messages]
    end = max(index for index, turn in enumerate(turns) if turn.role != ASSISTANT) + 1
    return Prompt(
        messages=tuple(turns[:end]), given=tuple(turns[end:]), category="c", source="s", licence="l", **fields
    )


def encode(chat: Any, prompt: Prompt, config: SupervisionConfig = ALL) -> list[TrainingSequence]:
    return to_sequences(given_turns(chat, prompt), config)


def learnt(chat: Any, sequence: TrainingSequence) -> list[str]:
    return [chat.decode(sequence.input_ids[start:end]) for start, end in sequence.supervised]


END = {
    "smollm2": "<|im_end|>",
    "chatml": "<|im_end|>",
    "chatml_marked": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "qwen3": "<|im_end|>",
    "mistral": "</s>",
    "gemma": "<end_of_turn>",
}
THOUGHTFUL = Message("assistant", "Paris.", reasoning="France. Capital?")


def test_thoughts_spelled_in_text_pieces_are_left_out_as_well(open_chat: Any) -> None:
    chat = open_chat("chatml")
    answer = ("assistant", "<think>Hm.</think>\n\n Paris.")
    config = SupervisionConfig(thinking=False)
    (sequence,) = encode(chat, conversation(("user", "Capital?"), answer), config)
    assert learnt(chat, sequence)[0].strip() == "Paris.<|im_end|>"


def test_thoughts_that_the_request_closes_are_a_reason(open_chat: Any) -> None:
    with pytest.raises(RenderError, match="continuation of its request"):
        encode(open_chat("qwen3", enable_thinking=False), conversation(("user", "Capital?"), THOUGHTFUL))


def test_an_answer_that_begins_with_a_line_break_keeps_the_piece_of_the_request(open_chat: Any) -> None:
    """D3: re-tokenised as a whole, the two line breaks would be one piece across the boundary."""
    chat = open_chat("chatml")
    (sequence,) = encode(chat, conversation(("user", "Hi"), ("assistant", "\n\nOk.")))
    request = chat.encode(chat.ask([Message("user", "Hi")]))
    assert sequence.input_ids[: len(request)] == request
    assert learnt(chat, sequence) == ["\n\nOk.<|im_end|>"]
    assert chat.encode("<|im_start|>assistant\n\n\nOk.")[:3] != request[-3:]


def test_an_empty_answer_teaches_its_end(open_chat: Any) -> None:
    for family, end in END.items():
        chat = open_chat(family)
        (sequence,) = encode(chat, conversation(("user", "Hi"), ("assistant", "")))
        assert learnt(chat, sequence)[0].removeprefix("<think>\n\n</think>\n\n").strip() == end


@pytest.mark.parametrize(
    ("family", "turns", "reason"),
    [
        ("gemma", (("system", "x"), ("user", "Hi"), ("assistant", "Ok.")), "role not supported: system"),
        ("mistral", (("user", "a"), ("user", "b"), ("assistant", "c")), "must alternate"),
        (
            "qwen3",
            (("user", "a"), ("critic", "b"), ("assistant", "c")),
            r"leaves out turn 1 \(role 'critic'\)",
        ),
        ("smollm2", (("user", "a"), ("assistant", "b<|im_end|>")), "holds the end-of-turn token"),
        ("smollm2", (("user", "a"),), "no answer to keep"),
    ],
)
def test_what_cannot_be_supervised_exactly_has_a_reason(
    open_chat: Any, family: str, turns: tuple[tuple[str, str], ...], reason: str
) -> None:
    with pytest.raises(RenderError, match=reason):
        encode(open_chat(family), conversation(*turns))


def test_a_tokenizer_that_marks_words_instead_of_spaces_loses_none_at_the_boundary(open_chat: Any) -> None:
    """Sentence-piece style: decoding drops the space that a text begins with."""
    pieces = ["<s>", "</s>", "[INST]", "[/INST]", "<unk>", *"\u2581abcdefghijklmnopqrstuvwxyz.?!"]
    model = models.BPE({piece: index for index, piece in enumerate(pieces)}, [], unk_token="<unk>")
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    tokenizer.add_tokens(["[INST]", "[/INST]"], special_tokens=True)
    tokenizer.chat_template = open_chat("mistral").tokenizer.chat_template
    chat = ChatTemplate(tokenizer)
    (sequence,) = encode(chat, conversation(("user", "so?"), ("assistant", "it is so.")))
    ((start, end),) = sequence.supervised
    assert [pieces[index] for index in sequence.input_ids[start:end]] == [
        *"\u2581it\u2581is\u2581so.",
        "</s>",
    ]
    with pytest.raises(RenderError, match="cannot spell turn 1"):
        encode(chat, conversation(("user", "so?"), ("assistant", "NO")))
