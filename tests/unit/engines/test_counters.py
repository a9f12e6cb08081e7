"""Acceptance from a server's counters, against cycles that are known."""

import pytest

from eagleray.engines.counters import SpeculationCounters
from eagleray.errors import EngineError
from eagleray.speculation.acceptance import cut_cycles, summarize

METRICS = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="target"} 31.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="target"} 9.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="target"} 1.76e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="target"} 1.2e+02
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="target"} 50.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="target",position="0"} 30.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="target",position="1"} 15.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="target",position="2"} 5.0
vllm:num_requests_running{engine="0"} 0.0
"""


def test_counters_of_all_engines_are_added():
    assert SpeculationCounters.read(METRICS) == SpeculationCounters(
        drafts=40, drafted=120, accepted=50, accepted_by_slot=(30, 15, 5)
    )


@pytest.mark.parametrize("metrics", ["", "vllm:spec_decode_num_drafts_total 3", "<html>"])
def test_a_server_that_does_not_speculate_is_told_apart(metrics):
    with pytest.raises(EngineError, match="does not speculate"):
        SpeculationCounters.read(metrics)


def test_what_was_added_between_two_readings_is_counted():
    before = SpeculationCounters(drafts=10, drafted=30, accepted=20, accepted_by_slot=(10, 7))
    added = SpeculationCounters.read(METRICS).since(before)
    assert added == SpeculationCounters(drafts=30, drafted=90, accepted=30, accepted_by_slot=(20, 8, 5))
    with pytest.raises(EngineError, match="from 40 drafts to 10"):
        before.since(SpeculationCounters.read(METRICS))


def counted(answers):
    """What a server would count of answers [(accepted of each draft of 3 tokens, answer tokens)]."""
    steps = [accepted for answer, _ in answers for accepted in answer]
    return SpeculationCounters(
        drafts=len(steps),
        drafted=3 * len(steps),
        accepted=sum(steps),
        accepted_by_slot=tuple(sum(accepted > slot for accepted in steps) for slot in range(3)),
    )


@pytest.mark.parametrize(
    "answers",
    [
        # Every step drafted, nothing cut: 1 + 4 + 1 + 3 tokens.
        [([3, 0, 2], 9)],
        # The last draft is cut by a limit.
        [([3, 0, 2], 7), ([1, 1], 5)],
        # Two steps without a draft.
        [([3, 0, 2], 11), ([1], 3)],
    ],
    ids=["whole", "cut", "steps without a draft"],
)
def test_tau_is_that_of_the_cycles(answers):
    cycles = [
        cycle
        for accepted, tokens in answers
        for cycle in cut_cycles([3] * len(accepted), accepted, answer_tokens=tokens)
    ]
    expected = summarize(cycles)
    seen = counted(answers).summary([tokens for _, tokens in answers])
    assert (seen.cycles, seen.delivered_tokens) == (expected.cycles, expected.delivered_tokens)
    assert seen.acceptance_length == expected.acceptance_length


def test_rates_by_slot_are_of_the_drafts_that_reached_the_slot():
    """Three drafts with 3, 0 and 2 accepted: 2 of 3 pass the first slot, both pass the second, one the
    third."""
    summary = counted([([3, 0, 2], 9)]).summary([9])
    assert summary.acceptance_rate_by_slot == pytest.approx((2 / 3, 1.0, 0.5))


def test_nothing_answered_is_no_cycle():
    summary = counted([]).summary([])
    assert (summary.cycles, summary.acceptance_length) == (0, 0.0)
