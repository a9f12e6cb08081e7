"""Templates with slots, and the order in which a family gives out its prompts.

Every filling of a template has a number, so a family is walked once, in an order that its seed
decides, without ever building it: no prompt comes twice, and how many are left is known.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Template:
    """A sentence with named slots in `str.format` style, and the values that each slot can take."""

    text: str
    slots: Mapping[str, Sequence[Any]]

    @property
    def size(self) -> int:
        """Number of fillings."""
        return math.prod(len(values) for values in self.slots.values())

    def fill(self, number: int) -> str:
        """Return filling `number` (0..size-1), counting the first slot fastest."""
        chosen = {}
        for name, values in self.slots.items():
            number, digit = divmod(number, len(values))
            chosen[name] = values[digit]
        return self.text.format(**chosen)


def walk(templates: Sequence[Template], seed: int) -> Iterator[str]:
    """Yield every filling of every template once, taking the templates in turn while they last."""
    chance = random.Random(seed)
    orders = [chance.sample(range(template.size), template.size) for template in templates]
    for turn in range(max(len(order) for order in orders)):
        for template, order in zip(templates, orders, strict=True):
            if turn < len(order):
                yield template.fill(order[turn])
