"""Several settings on the same prompts, one after the other, in one process.

What a machine does to one setting it does to its neighbours a second later, so settings are compared
through the plain decoding beside them, prompt by prompt, and drift of the machine cancels.
"""

from collections.abc import Iterable, Sequence

from eagleray.corpus.chat import RenderedPrompt
from eagleray.engines.base import DraftSetting, Engine, GenerationRequest, GenerationRun
from eagleray.evaluation.machine_load import WindowLoad, measured_load
from eagleray.settings import Settings

WARM_UP_TOKENS = 2


class SettingTime(Settings):
    """What one setting did with one group of prompts. Prefill, and the token it yields, are left out."""

    tokens: int
    cycles: int
    """Target verifications, of all answers together."""
    draft_s: float
    verify_s: float
    host_s: float
    divergence: str | None = None
    """Where an answer first differs from plain decoding; None where all are equal."""

    @property
    def decode_s(self) -> float:
        """Wall seconds of the group."""
        return self.draft_s + self.verify_s + self.host_s


class GroupTimes(Settings):
    """One group of prompts: those that were decoded together."""

    prompts: tuple[str, ...]
    """Their ids."""
    plain: SettingTime
    settings: tuple[SettingTime, ...]
    """In the order the settings were given, whatever order they ran in."""
    machine_load: tuple[WindowLoad, ...] = ()
    """Of each round, around all settings together; empty where nobody looked."""


def measure_interleaved(
    engine: Engine,
    prompts: Sequence[RenderedPrompt],
    drafts: Sequence[DraftSetting | None],
    *,
    concurrency: int,
    max_new_tokens: int,
    first_group: int = 0,
) -> tuple[GroupTimes, ...]:
    """Answer the prompts in groups of `concurrency`, each group plainly and with every setting in turn.

    The order rotates with the group. A setting of None is plain decoding once more: what it differs from
    plain by is the noise of the measurement.

    Args:
        first_group: Where the rotation starts, for callers that give the groups in several calls.
    """
    groups = [prompts[start : start + concurrency] for start in range(0, len(prompts), concurrency)]
    return tuple(
        _measure_group(engine, group, drafts, max_new_tokens, first_group + index)
        for index, group in enumerate(groups)
    )


def pool_rounds(groups: Iterable[GroupTimes]) -> tuple[GroupTimes, ...]:
    """Add up the rounds of each group: a prompt that ran twice is no second prompt.

    Groups keep the order in which they first appear.
    """
    rounds: dict[tuple[str, ...], list[GroupTimes]] = {}
    for group in groups:
        rounds.setdefault(group.prompts, []).append(group)
    return tuple(
        GroupTimes(
            prompts=prompts,
            plain=_add([group.plain for group in same]),
            settings=tuple(_add(times) for times in zip(*(group.settings for group in same), strict=True)),
            machine_load=tuple(load for group in same for load in group.machine_load),
        )
        for prompts, same in rounds.items()
    )


def _add(times: Sequence[SettingTime]) -> SettingTime:
    return SettingTime(
        tokens=sum(time.tokens for time in times),
        cycles=sum(time.cycles for time in times),
        draft_s=sum(time.draft_s for time in times),
        verify_s=sum(time.verify_s for time in times),
        host_s=sum(time.host_s for time in times),
        divergence=next((time.divergence for time in times if time.divergence), None),
    )


def _measure_group(
    engine: Engine,
    group: Sequence[RenderedPrompt],
    drafts: Sequence[DraftSetting | None],
    max_new_tokens: int,
    index: int,
) -> GroupTimes:
    settings: list[DraftSetting | None] = [None, *drafts]
    shift = index % len(settings)
    order = [*range(shift, len(settings)), *range(shift)]
    # The first call of each setting pays for allocations that no later call pays for.
    for place in order:
        engine.generate(_requests(group, min(WARM_UP_TOKENS, max_new_tokens)), draft=settings[place])
    requests = _requests(group, max_new_tokens)
    with measured_load() as window:
        runs = {place: engine.generate(requests, draft=settings[place]) for place in order}
    plain, *drafted = (_time(runs[place], runs[0]) for place in range(len(settings)))
    return GroupTimes(
        prompts=tuple(request.request_id for request in requests),
        plain=plain,
        settings=tuple(drafted),
        machine_load=(window.load,),
    )


def _requests(group: Sequence[RenderedPrompt], max_new_tokens: int) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            request_id=item.prompt.prompt_id, prompt_ids=item.prompt_ids, max_new_tokens=max_new_tokens
        )
        for item in group
    ]


def _time(run: GenerationRun, plain: GenerationRun) -> SettingTime:
    cycles = [cycle for generation in run.generations for cycle in generation.cycles]
    return SettingTime(
        tokens=sum(cycle.delivered for cycle in cycles),
        cycles=len(cycles),
        draft_s=run.times.draft_s,
        verify_s=run.times.verify_s,
        host_s=run.times.host_s,
        divergence=_divergence(run, plain),
    )


def _divergence(run: GenerationRun, plain: GenerationRun) -> str | None:
    for ours, theirs in zip(run.generations, plain.generations, strict=True):
        if ours.answer_ids != theirs.answer_ids:
            pairs = zip(ours.answer_ids, theirs.answer_ids, strict=False)
            token = next(
                (place for place, (one, other) in enumerate(pairs) if one != other),
                min(len(ours.answer_ids), len(theirs.answer_ids)),
            )
            return f"prompt {ours.request_id}, token {token}"
    return None
