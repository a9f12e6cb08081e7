"""What each figure of a report means. Printed in it, so that no number travels without its meaning."""

from eagleray.speculation.acceptance import DEFINITION as ACCEPTANCE_LENGTH

DEFINITIONS = {
    "acceptance_length": f"{ACCEPTANCE_LENGTH}. Plain decoding is 1.0.",
    "acceptance_rate_by_slot": (
        "Share of the cycles whose earlier slots were all accepted in which this slot was accepted too. "
        "Slot 1 is the first draft token."
    ),
    "greedy_exact_ratio": (
        "Share of drafted answers, over all depths and both kinds of measurement, whose ids equal those "
        "of plain decoding from the first to the last. In dtypes below float32, an answer that first differs "
        "where the target's two likeliest tokens are within 0.25 of log probability counts as equal."
    ),
    "speedup_ratio": (
        "Tokens per second with the drafter over tokens per second without, at batch 1, prefill excluded, "
        "from sums over prompts. All settings answer a prompt one after the other in one process, in an "
        "order that rotates from prompt to prompt."
    ),
    "interval": (
        "Bootstrap over prompts: whole prompts are drawn again with replacement and every sum is made anew. "
        "Percentiles are expanded for few prompts as Student's t is beyond the normal."
    ),
    "best_depth": (
        "The depth with the highest acceptance length. It and speedup_depth, the fastest, are chosen on "
        "the very prompts they are reported on; by_depth holds all depths."
    ),
    "verdict": (
        "win: the interval of the speedup lies above 1.0. loss: it lies below 1.0. undecided: it holds 1.0, "
        "too few prompts were timed, an answer differs from plain decoding, plain speed drifted, or the "
        "speedup lies above the acceptance length, which is impossible: a cycle takes at least a plain step."
    ),
    "slices": (
        "By category and by length of the prompt, at the one depth that is fastest on all prompts together. "
        "The worst slice has the least speedup, or the least acceptance length where none was timed."
    ),
    "break_even": (
        "Concurrency at which the speedup falls through 1.0, interpolated over its logarithm between the "
        "measured ones."
    ),
    "prediction": (
        "Acceptance length over the cost of a cycle in plain steps. The cost is fitted over the depth to the "
        "other categories at the same load, so no point predicts itself."
    ),
    "time_share": (
        "Shares of decode time: draft is the drafter's work, verify the target's forwards over drafts, host "
        "the rest."
    ),
    "draft_cost_ratio": (
        "Seconds of drafting in one cycle over seconds of one plain step of the target, from the same timed "
        "answers as the speedup."
    ),
    "plain_vs_hf_ratio": (
        "Median over prompts of the engine's tokens per second over those of Hugging Face generate: same "
        "folder, dtype, threads and prompts, no drafter, whole calls with prefill."
    ),
    "peak_rss_bytes": "Largest resident memory of any single process of the run.",
}
