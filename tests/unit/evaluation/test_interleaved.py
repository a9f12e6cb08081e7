from dataclasses import replace
from typing import Any

from eagleray.engines.base import DraftSetting, GenerationRun
from eagleray.evaluation.interleaved import WARM_UP_TOKENS, measure_interleaved, pool_rounds
from eagleray.evaluation.measure import Bench


def settings(bench: Bench) -> list[DraftSetting | None]:
    return [DraftSetting(source=bench.sources["good"], depth=3), None]


def test_each_group_is_answered_with_every_setting_in_an_order_that_rotates(bench: Bench) -> None:
    prompts = bench.prompts["code"][:4]
    measure_interleaved(bench.engine, prompts, settings(bench), concurrency=2, max_new_tokens=13)
    calls = bench.engine.calls  # type: ignore[attr-defined]
    assert [tokens for _, tokens, *_ in calls] == ([WARM_UP_TOKENS] * 3 + [13] * 3) * 2
    assert [depth for *_, depth in calls] == [0, 3, 0, 0, 3, 0, 3, 0, 0, 3, 0, 0]
    assert [len(names) for names, *_ in calls] == [2] * 12


def test_times_leave_prefill_out_and_count_cycles_of_all_answers(bench: Bench) -> None:
    """12 tokens after the first: 12 cycles plain, 3 drafted ones of 1.25 s."""
    prompts = bench.prompts["code"][:1]
    (group,) = measure_interleaved(bench.engine, prompts, settings(bench), concurrency=1, max_new_tokens=13)
    assert (group.plain.tokens, group.plain.cycles, group.plain.decode_s) == (12, 12, 12.0)
    drafted, again = group.settings
    assert (drafted.tokens, drafted.cycles, drafted.decode_s) == (12, 3, 3.75)
    assert (again.tokens, again.cycles, again.decode_s) == (12, 12, 12.0)
    assert group.prompts == (prompts[0].prompt.prompt_id,)


def test_the_first_answer_that_differs_is_named(bench: Bench) -> None:
    engine = bench.engine
    honest: Any = engine.generate

    def lying(requests: Any, **more: Any) -> GenerationRun:
        run: GenerationRun = honest(requests, **more)
        if more["draft"] is None:
            return run
        last = run.generations[-1]
        ids = (*last.answer_ids[:5], 0, *last.answer_ids[6:])
        return replace(run, generations=(*run.generations[:-1], replace(last, answer_ids=ids)))

    engine.generate = lying  # type: ignore[method-assign]
    prompts = bench.prompts["code"][:2]
    (group,) = measure_interleaved(engine, prompts, settings(bench), concurrency=2, max_new_tokens=13)
    assert group.settings[0].divergence == f"prompt {prompts[1].prompt.prompt_id}, token 5"
    assert group.settings[1].divergence is None
    assert group.plain.divergence is None


def test_rounds_of_a_prompt_are_one_prompt(bench: Bench) -> None:
    prompts = bench.prompts["code"][:2]
    once = measure_interleaved(bench.engine, prompts, settings(bench), concurrency=1, max_new_tokens=13)
    wrong = once[1].settings[0].model_copy(update={"divergence": "prompt x, token 3"})
    second = once[1].model_copy(update={"settings": (wrong, once[1].settings[1])})
    first_pooled, second_pooled = pool_rounds([*once, once[0], second])
    assert first_pooled.prompts == once[0].prompts
    assert (first_pooled.plain.tokens, first_pooled.plain.decode_s) == (24, 24.0)
    assert (first_pooled.settings[0].cycles, first_pooled.settings[0].decode_s) == (6, 7.5)
    assert second_pooled.settings[0].divergence == "prompt x, token 3"
    assert second_pooled.settings[1].divergence is None
