"""One step, measured: what the memory plan's activations are held to before a run begins."""

from dataclasses import replace

import psutil
import torch
from torch import Tensor

from eagleray.drafters.base import TrainableDrafter, TrainingBatch
from eagleray.drafters.config import DrafterConfig
from eagleray.targets.geometry import TargetGeometry
from eagleray.training.config import TrainingConfig
from eagleray.training.memory import FLOAT, activations


def saved_bytes(drafter: TrainableDrafter, batch: TrainingBatch) -> int:
    """Size of the distinct tensors that autograd keeps of a step.

    Weights, the target's matrices and the batch are there anyway and do not count.
    """
    heads = getattr(drafter, "heads", None)
    given = [*drafter.parameters(), batch.features_BTLD, batch.final_BTD]
    given += [heads.embed_VD, heads.lm_head_VD] if heads is not None else []
    there_anyway = {tensor.untyped_storage().data_ptr() for tensor in given}
    kept: dict[int, torch.UntypedStorage] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in there_anyway:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        terms = drafter(batch)
    assert terms.loss_sum.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


def activation_ratio(
    drafter: TrainableDrafter,
    batch: TrainingBatch,
    config: DrafterConfig,
    training: TrainingConfig,
    geometry: TargetGeometry,
) -> float:
    """Measured over planned activations of a batch, as if every token but the first were supervised."""
    positions_T = torch.arange(batch.ids_BT.shape[1], device=batch.ids_BT.device)
    supervised_BT = (positions_T > 0) & (positions_T < batch.lengths_B[:, None])
    measured = saved_bytes(drafter, replace(batch, supervised_BT=supervised_BT))
    planned = sum(
        activations(config, training.model_copy(update={"max_length": length, "pack": False}), geometry).saved
        for length in batch.lengths_B.tolist()
    )
    return measured / (FLOAT * planned)


def memory_of(device: torch.device) -> int:
    """Bytes that the device has; of a CPU, those of its machine."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(psutil.virtual_memory().total)
