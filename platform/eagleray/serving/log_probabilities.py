"""Log probabilities in the two forms of OpenAI: a list of tokens for chats, columns for completions."""

from collections.abc import Callable, Sequence
from typing import Any

from eagleray.engines.base import Generation, TokenScore

Spell = Callable[[Sequence[int]], str]
"""Text of ids, control tokens included."""


def chat_log_probabilities(answer: Generation, spell: Spell) -> dict[str, Any] | None:
    """What a chat's choice holds; None if they were not asked for."""
    if answer.scores is None:
        return None
    content = [
        {
            **_token(spell([token_id]), score.chosen),
            "top_logprobs": [_token(spell([other]), logprob) for other, logprob in score.likeliest],
        }
        for token_id, score in zip(answer.answer_ids, answer.scores, strict=True)
    ]
    return {"content": content, "refusal": None}


def completion_log_probabilities(answer: Generation, spell: Spell) -> dict[str, Any] | None:
    """What a completion's choice holds; None if they were not asked for."""
    if answer.scores is None:
        return None
    tokens = [spell([token_id]) for token_id in answer.answer_ids]
    return {
        "tokens": tokens,
        "token_logprobs": [score.chosen for score in answer.scores],
        "top_logprobs": [_likeliest(score, spell) for score in answer.scores],
        "text_offset": [sum(map(len, tokens[:place])) for place in range(len(tokens))],
    }


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _likeliest(score: TokenScore, spell: Spell) -> dict[str, float]:
    return {spell([token_id]): logprob for token_id, logprob in score.likeliest}
