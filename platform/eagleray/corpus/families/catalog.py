"""The families by name."""

from collections.abc import Iterator

from eagleray.corpus.families import arithmetic, code
from eagleray.corpus.families.sources import SOURCES
from eagleray.corpus.families.template import Template, walk
from eagleray.corpus.prompt import Prompt, user_prompt

FAMILIES: dict[str, tuple[Template, ...]] = {"code": code.TEMPLATES, "arithmetic": arithmetic.TEMPLATES}


def family_prompts(name: str, seed: int) -> Iterator[Prompt]:
    """Yield every prompt of a family once, in the order of the seed."""
    record = SOURCES[name]
    for text in walk(FAMILIES[name], seed):
        yield user_prompt(text, category=name, source=record.origin, licence=record.licence)
