"""Grouped-query attention as plain batched matrix products.

Query heads of one group share keys, so they stand as further queries of that group and no key is
copied. Shapes: B batch rows, A query slots, S keys, H query heads, G groups, d width of a head,
X = H / G * A queries of a group.
"""

import torch.nn.functional as F
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


def attend(
    queries_BAHd: Tensor, keys_BGSd: Tensor, values_BGSd: Tensor, visible_BAS: Tensor | None
) -> Tensor:
    """Attention of every slot over the keys it may see. Returns [B, A, H * d].

    Args:
        visible_BAS: bool, at least one key per slot. None: every slot sees every key.
    """
    slots, heads = queries_BAHd.shape[1:3]
    groups = keys_BGSd.shape[1]
    mask = None if visible_BAS is None else visible_BAS.repeat(1, heads // groups, 1)[:, None]
    grouped = group_queries(queries_BAHd, groups)
    out_BGXd = F.scaled_dot_product_attention(grouped, keys_BGSd, values_BGSd, attn_mask=mask)
    return ungroup_queries(out_BGXd, slots)
