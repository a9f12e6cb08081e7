"""How long the samples of a recipe can become, before anything is distilled.

Kept answers are encoded, so their extents are exact. Answers that the target will give are taken to be
as long as they may be, turn after turn, so the true samples are never longer.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from eagleray.corpus.accounting import Extent
from eagleray.corpus.chat import ChatTemplate, RenderError
from eagleray.corpus.prompt import ASSISTANT, Message, Prompt
from eagleray.corpus.prompt_table import PromptTable
from eagleray.distillation.answers import GivenAnswers
from eagleray.distillation.config import DistilConfig
from eagleray.distillation.dialogue import requests_of

MAX_PLANNED = 20_000
"""Prompts whose extents are planned; of more prompts, a uniform sample speaks for all."""


@dataclass(frozen=True, kw_only=True)
class PlannedExtents:
    """What prompts can give."""

    rows: list[Extent]
    planned_prompts: int
    all_prompts: int

    @property
    def tokens(self) -> int:
        """Tokens of all prompts and answers, exact or scaled up from the sample."""
        planned = sum(row.tokens for row in self.rows)
        return round(planned * self.all_prompts / max(1, self.planned_prompts))

    @property
    def note(self) -> str:
        """What a figure from these rows must say of them; empty if they are of all prompts."""
        if self.planned_prompts == self.all_prompts:
            return ""
        return f"By a uniform sample of {self.planned_prompts:,} of {self.all_prompts:,} prompts: "


def plan_extents(
    prompts: PromptTable, chat: ChatTemplate, config: DistilConfig, context_window_tokens: int
) -> PlannedExtents:
    """Plan all prompts, or a sample of `MAX_PLANNED` of them that is the same at every start."""
    rows = planned_extents(prompts.sample(MAX_PLANNED), chat, config, context_window_tokens)
    planned = min(prompts.rows, MAX_PLANNED)
    return PlannedExtents(rows=rows, planned_prompts=planned, all_prompts=prompts.rows)


def planned_extents(
    prompts: Iterable[Prompt], chat: ChatTemplate, config: DistilConfig, context_window_tokens: int
) -> list[Extent]:
    """Extents of what the prompts can give; prompts that will be rejected have none."""
    if config.answers == "keep":
        given = GivenAnswers(chat, config.supervision, context_window_tokens)
        return [
            Extent(
                category=one.prompt.category,
                tokens=len(answer.sequence.input_ids),
                supervised=answer.sequence.supervised,
            )
            for one in given.encode(prompts).answered
            for answer in one.sequences
        ]
    rows: list[Extent] = []
    for prompt in prompts:
        settings = config.answering(prompt.category)
        extent = _planned_dialogue(prompt, chat, settings.max_new_tokens, config, context_window_tokens)
        if extent is not None:
            rows += [extent] * settings.samples_per_prompt
    return rows


def _planned_dialogue(
    prompt: Prompt, chat: ChatTemplate, max_new_tokens: int, config: DistilConfig, context_window_tokens: int
) -> Extent | None:
    """One sequence of all turns. Templates that split it repeat history, which no cut can lose more of."""
    history: list[Message] = []
    spans: list[tuple[int, int]] = []
    for request in requests_of(prompt.messages):
        history += request
        try:
            asked_tokens = len(chat.encode(chat.ask(history, prompt.tools)))
        except RenderError:
            break
        start = asked_tokens + len(spans) * max_new_tokens
        if start + max_new_tokens > context_window_tokens:
            break
        spans.append((start, start + max_new_tokens))
        history.append(Message(ASSISTANT, ""))
    if not spans:
        return None
    learnt = spans if config.supervision.turns == "all" else spans[-1:]
    return Extent(category=prompt.category, tokens=spans[-1][1], supervised=tuple(learnt))
