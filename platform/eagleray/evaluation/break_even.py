"""Where drafting stops to pay as more requests are decoded together."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any


def break_even(speedups: Mapping[int, float]) -> dict[str, Any] | None:
    """The concurrency at which drafting stops paying, between the two measured ones that hold it.

    Interpolated over the logarithm of the concurrency, along which batches grow.

    Args:
        speedups: By concurrency; with fewer than two there is nothing to say, and the result is None.
    """
    if len(speedups) < 2:
        return None
    points = sorted(speedups.items())
    for (low, above), (high, below) in pairwise(points):
        if above > 1.0 >= below:
            share = (above - 1.0) / (above - below)
            crossing = 2 ** (math.log2(low) + share * (math.log2(high) - math.log2(low)))
            return {
                "concurrency": crossing,
                "reason": f"the speedup falls through 1.0 between {low} and {high} at once",
            }
    pays = [speedup > 1.0 for speedup in speedups.values()]
    measured = " and ".join(str(concurrency) for concurrency, _ in points)
    if all(pays):
        reason = f"drafting is faster at every measured concurrency ({measured})"
    elif not any(pays):
        reason = f"drafting is faster at no measured concurrency ({measured})"
    else:
        reason = f"the speedup only rises through 1.0 ({measured})"
    return {"concurrency": None, "reason": reason}
