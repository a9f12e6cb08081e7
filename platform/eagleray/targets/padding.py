"""Right-padded sequences through a forward that knows no padding.

Shapes: B rows, T positions, L tapped layers, D target width; packed tensors have the real positions of all
rows on one axis.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def run_without_padding(
    ids_BT: Tensor,
    lengths_B: Tensor,
    device: torch.device,
    forward: Callable[[Tensor, list[int]], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Run the real tokens, and put what comes out where they stood, with zeros in the padding.

    Args:
        forward: From packed ids and the length of each row to packed features and final states.

    Returns:
        features_BTLD and final_BTD.
    """
    ids_BT = ids_BT.to(device)
    real_BT = torch.arange(ids_BT.shape[1], device=device) < lengths_B.to(device)[:, None]
    features_BTLD, final_BTD = (
        tensor.new_zeros(*ids_BT.shape, *tensor.shape[1:]).index_put_((real_BT,), tensor)
        for tensor in forward(ids_BT[real_BT], lengths_B.tolist())
    )
    return features_BTLD, final_BTD


def stack_features(features: Sequence[Tensor], final_TD: Tensor) -> Tensor:
    """features_TLD of the tapped layers; L is 0 where none is."""
    if not features:
        return final_TD.new_empty(len(final_TD), 0, final_TD.shape[1])
    return torch.stack(list(features), dim=1)
