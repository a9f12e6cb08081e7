"""Answers in OpenAI's JSON, whole and in chunks, with what was speculated beside the usage."""

import json
import time
from typing import Any

from eagleray.serving.account import cycle_counts, speculation_facts
from eagleray.serving.answers import Answers, Choice, Piece
from eagleray.serving.asks import Ask, Kind
from eagleray.serving.log_probabilities import (
    Spell,
    chat_log_probabilities,
    completion_log_probabilities,
)

OBJECTS: dict[tuple[Kind, bool], str] = {
    ("chat", False): "chat.completion",
    ("chat", True): "chat.completion.chunk",
    ("completion", False): "text_completion",
    ("completion", True): "text_completion",
}
DONE = b"data: [DONE]\n\n"


class Replies:
    """Writes the answers of one request.

    Args:
        spell: Text of ids, for log probabilities.
    """

    def __init__(self, ask: Ask, model: str, spell: Spell):
        self._spell = spell
        self._ask = ask
        self._created = int(time.time())
        self._model = model

    def whole(self, answers: Answers) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        return {
            **self._head(stream=False),
            "choices": [self._choice(choice) for choice in answers.choices],
            "usage": self._usage(answers),
            "speculation": self._speculation(answers),
        }

    def first(self) -> list[dict[str, Any]]:
        """Chunks before any text: a chat's turns say whose they are."""
        if self._ask.kind != "chat":
            return []
        return [
            self._chunk(
                {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            )
            for index in range(len(self._ask.requests))
        ]

    def piece(self, piece: Piece) -> dict[str, Any]:
        """The chunk of a piece."""
        choice: dict[str, Any] = {"index": piece.index, "finish_reason": piece.finish_reason}
        if self._ask.kind == "chat":
            choice["delta"] = {"content": piece.text} if piece.text else {}
        else:
            choice |= {"text": piece.text, "logprobs": None}
        if self._ask.return_token_ids:
            choice["token_ids"] = list(piece.ids)
        return self._chunk(choice)

    def last(self, answers: Answers) -> dict[str, Any] | None:
        """The chunk of usage, if it was asked for; it has no choices."""
        if not self._ask.include_usage:
            return None
        chunk = {**self._head(stream=True), "choices": [], "usage": self._usage(answers)}
        chunk["speculation"] = self._speculation(answers)
        if self._ask.return_cycles:
            chunk["cycles"] = [cycle_counts(choice.cycles) for choice in answers.choices]
        return chunk

    def _head(self, *, stream: bool) -> dict[str, Any]:
        return {
            "id": self._ask.answer_id,
            "object": OBJECTS[self._ask.kind, stream],
            "created": self._created,
            "model": self._model,
        }

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        usage = {"usage": None} if self._ask.include_usage else {}
        return {**self._head(stream=True), "choices": [choice], **usage}

    def _choice(self, choice: Choice) -> dict[str, Any]:
        answer = choice.outcome
        assert answer is not None, "the answer is still growing"
        body: dict[str, Any] = {"index": choice.index, "finish_reason": answer.finish_reason}
        if self._ask.kind == "chat":
            body["message"] = {"role": "assistant", "content": choice.content, "refusal": None}
            body["logprobs"] = chat_log_probabilities(answer, self._spell)
        else:
            body["text"] = choice.content
            body["logprobs"] = completion_log_probabilities(answer, self._spell)
        if self._ask.return_token_ids:
            body["token_ids"] = list(answer.answer_ids)
        if self._ask.return_cycles:
            body["cycles"] = cycle_counts(answer.cycles)
        return body

    @staticmethod
    def _speculation(answers: Answers) -> dict[str, Any]:
        return {**speculation_facts(answers.cycles), "lossy": answers.lossy}

    def _usage(self, answers: Answers) -> dict[str, Any]:
        prompt, completion = self._ask.prompt_tokens, answers.completion_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": answers.reused_prompt_tokens},
        }


def event(content: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
