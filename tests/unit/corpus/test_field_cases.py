"""Cases seen in the field, from the row in a file to the ids that are learnt, with their stated numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from eagleray.corpus.accounting import NO_SUPERVISED, Extent, account
from eagleray.corpus.chat import ChatTemplate, RenderError
from eagleray.corpus.config import SupervisionConfig
from eagleray.corpus.given_answers import given_turns
from eagleray.corpus.prompt import Prompt, Reject
from eagleray.corpus.prompt_files import read_prompts
from eagleray.corpus.sample import Sample
from eagleray.corpus.supervision import TrainingSequence, to_sequences
from eagleray.training.collate import collate
from eagleray.training.rows import TrainingRow, first_row

END = 2
"""`<|im_end|>` of the embedded target; also its end of text and its padding."""

Turn = dict[str, Any]


def user(text: str) -> Turn:
    return {"role": "user", "content": text}


def assistant(text: str) -> Turn:
    return {"role": "assistant", "content": text}


def read(folder: Path, *rows: dict[str, Any]) -> list[Prompt | Reject]:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    items = list(read_prompts(path, "c", "l"))
    assert len(items) == len(rows)
    return items


def encode(chat: ChatTemplate, folder: Path, *turns: Turn, **fields: Any) -> list[TrainingSequence]:
    (prompt,) = read(folder, {"messages": list(turns), **fields})
    assert isinstance(prompt, Prompt)
    return to_sequences(given_turns(chat, prompt), SupervisionConfig())


def ones(sequence: TrainingSequence) -> list[int]:
    """Indices of the mask that are 1."""
    return [index for start, end in sequence.supervised for index in range(start, end)]


D1 = (user("Hi"), assistant("Ok."))
D3A = (
    {"role": "system", "content": "Be terse."},
    *(user("A?"), assistant("Yes."), user("B?"), assistant("Yes.")),
)


def test_d1_a_template_without_generation_marks(open_chat: Any, tmp_path: Path) -> None:
    chat = open_chat("smollm2")
    (sequence,) = encode(chat, tmp_path, *D1)
    assert len(sequence.input_ids) == 35
    assert ones(sequence) == [31, 32, 33]
    assert [chat.decode([sequence.input_ids[index]]) for index in (31, 32, 33, 34)] == [
        *("Ok", ".", "<|im_end|>", "\n")
    ]


def test_d3_the_same_text_twice(open_chat: Any, tmp_path: Path) -> None:
    (sequence,) = encode(open_chat("smollm2"), tmp_path, *D3A)
    assert len(sequence.input_ids) == 39
    assert ones(sequence) == [20, 21, 22, 35, 36, 37]
    (sequence,) = encode(open_chat("smollm2"), tmp_path, user("Yes."), assistant("Yes."))
    assert len(sequence.input_ids) == 36
    assert ones(sequence) == [32, 33, 34]


WEATHER = (
    user("Weather in Oslo?"),
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}],
    },
    {"role": "tool", "content": '{"temp_c":4}'},
    assistant("It is 4 C."),
)


@pytest.mark.parametrize("family", ["llama3", "qwen3"])
def test_d5_null_content_and_tool_turns(open_chat: Any, tmp_path: Path, family: str) -> None:
    chat = open_chat(family)
    sequences = encode(chat, tmp_path, *WEATHER)
    texts = [chat.decode(sequence.input_ids) for sequence in sequences]
    learnt = [
        chat.decode(sequence.input_ids[start:end])
        for sequence in sequences
        for start, end in sequence.supervised
    ]
    assert learnt[-1].endswith(("It is 4 C.<|eot_id|>", "It is 4 C.<|im_end|>"))
    assert "temp_c" in texts[-1]
    assert not any("temp_c" in text for text in learnt)
    assert not any("None" in text for text in texts)


def test_d5_a_template_that_shows_no_calls_says_so_and_loses_no_row(open_chat: Any, tmp_path: Path) -> None:
    with pytest.raises(RenderError, match="does not show the tool_calls of turn 1"):
        encode(open_chat("smollm2"), tmp_path, *WEATHER)


def test_d7_truncation_leaves_nothing_to_learn(open_chat: Any, tmp_path: Path) -> None:
    chat = open_chat("smollm2")
    (long,) = encode(chat, tmp_path, user("word " * 60), assistant("Ok."))
    (short,) = encode(chat, tmp_path, *D1)
    assert (long.prompt_tokens, len(long.input_ids)) == (91, 95)
    extents = [
        Extent(category="c", tokens=len(one.input_ids), supervised=one.supervised) for one in (long, short)
    ]
    together = account(extents, 64)
    assert together is not None
    assert (together.total.whole_rows, together.total.lost_rows) == (1, 1)
    assert together.lost_rows_by_reason == {NO_SUPERVISED: 1} == {"no supervised tokens": 1}
    alone = account(extents[:1], 64)
    assert alone is not None
    assert (alone.total.rows, alone.total.lost_rows, alone.anchors) == (1, 1, 0)


def test_d7_a_cut_answer_teaches_no_end(open_chat: Any, tmp_path: Path) -> None:
    (sequence,) = encode(open_chat("smollm2"), tmp_path, *D1, finish_reason="length")
    assert (sequence.answer_tokens, sequence.finish_reason) == (2, "length")
    assert END not in sequence.input_ids[sequence.prompt_tokens :]


class NoFeatures:
    """Stands in for a target: masks need none of it."""

    def features(self, rows: list[TrainingRow], device: torch.device) -> Any:
        shape = (len(rows), max(row.length for row in rows))
        return torch.zeros(*shape, 1, 1), torch.zeros(*shape, 1)


@pytest.mark.parametrize("side", ["right", "left"])
def test_d10_padding_with_the_end_of_turn_id(open_chat: Any, tmp_path: Path, side: str) -> None:
    chat = open_chat("smollm2")
    rows = [encode(chat, tmp_path, *turns)[0] for turns in (D1, D3A)]
    padded = chat.tokenizer.pad(
        {"input_ids": [list(row.input_ids) for row in rows]}, padding_side=side, return_tensors="pt"
    )
    assert padded["input_ids"].shape == (2, 39)
    for row, ids_T, real_T, count in zip(
        rows, padded["input_ids"], padded["attention_mask"], (3, 6), strict=True
    ):
        # A mask is of the row; where the row lies in the batch, its attention mask says.
        places = real_T.nonzero().flatten().tolist()
        learnt = [places[index] for index in ones(row)]
        assert len(learnt) == count
        ends = [places[end - 1] for _, end in row.supervised]
        assert set(ends) <= set(learnt)
        assert ids_T[ends].tolist() == [END] * len(ends)


def test_d10_a_training_batch_learns_every_end(open_chat: Any, tmp_path: Path) -> None:
    rows = [encode(open_chat("smollm2"), tmp_path, *turns)[0] for turns in (D1, D3A)]
    samples = [
        Sample(
            sample_id=str(index),
            input_ids=row.input_ids,
            supervised=row.supervised,
            prompt_tokens=row.prompt_tokens,
            answer_tokens=row.answer_tokens,
            finish_reason=row.finish_reason,
            answer_origin="given",
            category="c",
            source="s",
        )
        for index, row in enumerate(rows)
    ]
    batch = collate([first_row(one, 64) for one in samples], NoFeatures(), seed=0, device=torch.device("cpu"))
    assert batch.supervised_BT.sum(1).tolist() == [3, 6]
    learnt_ends = batch.supervised_BT & (batch.ids_BT == END)
    assert [row.nonzero().flatten().tolist() for row in learnt_ends] == [[33], [22, 37]]


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("arguments", ['{"city": "Oslo"}', {"city": "Oslo"}])
def test_s5_a_column_that_is_null_in_the_first_file(
    tmp_path: Path, order: str, arguments: str | dict[str, str]
) -> None:
    plain = [{"messages": [{**user("x"), "tool_calls": None}], "system": None}] * 50
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    turns = [user("x"), {"role": "assistant", "content": None, "tool_calls": [call]}, WEATHER[2]]
    with_call = [{"messages": turns, "system": "Be terse."}]
    for letter, rows in zip(order, (plain, with_call), strict=True):
        (tmp_path / f"{letter}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = [item for item in read_prompts(f"{tmp_path}/*.jsonl", "c", "l") if isinstance(item, Prompt)]
    assert len(prompts) == 51
    calls = [call for prompt in prompts for turn in prompt.messages for call in turn.tool_calls]
    assert [call.arguments for call in calls] == ['{"city": "Oslo"}']
    assert [prompt.messages[0].content for prompt in prompts].count("Be terse.") == 1
