"""Grouped-query attention as plain batched matrix products.

Query heads of one group share keys, so they stand as further queries of that group and no key is
copied. Shapes: B batch rows, A query slots, H query heads, G groups, d width of a head,
X = H / G * A queries of a group.
"""

from torch import Tensor


def group_queries(queries_BAHd: Tensor, groups: int) -> Tensor:
    """[B, A, H, d] to [B, G, X, d], head-major within a group."""
    batch, slots, heads, width = queries_BAHd.shape
    split = queries_BAHd.reshape(batch, slots, groups, heads // groups, width)
    return split.permute(0, 2, 3, 1, 4).reshape(batch, groups, -1, width)


def ungroup_queries(out_BGXd: Tensor, slots: int) -> Tensor:
    """[B, G, X, d] to [B, A, H * d], undoing `group_queries`."""
    batch, groups, _, width = out_BGXd.shape
    split = out_BGXd.reshape(batch, groups, -1, slots, width)
    return split.permute(0, 3, 1, 2, 4).reshape(batch, slots, -1)
