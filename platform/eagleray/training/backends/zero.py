"""`deepspeed`: ZeRO, the only file that imports DeepSpeed.

Stage 1 shares optimiser state over ranks, 2 gradients too, 3 parameters too; each can keep the optimiser in
the memory of the host. DeepSpeed flattens parameters, so there are no matrices to orthogonalise: AdamW only.
It is torch's AdamW, given from outside, because DeepSpeed would compile its own at the first step.
"""

import contextlib
import copy
import os
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from eagleray.drafters.base import TrainableDrafter
from eagleray.training.backends.base import Backend, Weights
from eagleray.training.config import TrainingConfig
from eagleray.training.optimizer import OptimizerState, adamw, split_parameters
from eagleray.watchdog.heartbeat import Heartbeat

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
from deepspeed.ops import __compatible_ops__ as compatible_ops
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)

MOMENTS = ("exp_avg", "exp_avg_sq")


class ZeroBackend(Backend):
    """A DeepSpeed engine around the drafter."""

    def __init__(self, drafter: TrainableDrafter, config: TrainingConfig, heartbeat: Heartbeat):
        # Shared memory between the ranks of a machine would be compiled for a minute; gloo does without.
        compatible_ops["deepspeed_shm_comm"] = False
        self.drafter = drafter
        self._heartbeat = heartbeat
        # Stage 3 gathers parameters in hooks of submodules, for which all ranks must draft alike.
        self._plain = _copy(drafter) if config.zero.stage == 3 else None
        self._peak_rate = config.learning_rate
        parameters = [p for group in split_parameters(drafter) for p in group]
        self._adamw = adamw(parameters, config.learning_rate, config.weight_decay)
        self._engine, self._zero, _, _ = deepspeed.initialize(
            model=drafter, optimizer=self._adamw, config=engine_settings(config)
        )
        self.module = self._engine

    def micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        self._engine.set_gradient_accumulation_boundary(last)
        return contextlib.nullcontext()

    def backward(self, loss_sum: Tensor) -> None:
        self._engine.backward(loss_sum, scale_wrt_gas=False)

    def update(self, weight_sum: float, rate_factor: float) -> float:
        for group in self._zero.param_groups:
            group["lr"] = self._peak_rate * rate_factor
        # DeepSpeed divides gradients by its loss scale before it clips them: the place where the step's
        # weight, known only after its last forward, can enter. Gradients are averages over ranks by then.
        self._zero.loss_scaler.cur_scale = weight_sum / dist.get_world_size()
        self._heartbeat.enter_collective()
        self._engine.step()
        self._zero.loss_scaler.cur_scale = 1.0
        return float(self._engine.get_global_grad_norm())

    def whole(self) -> AbstractContextManager[TrainableDrafter]:
        if self._plain is None:
            return contextlib.nullcontext(self.drafter)
        self._plain.load_state_dict(self.weights())
        return contextlib.nullcontext(self._plain)

    def weights(self) -> Weights:
        trained = {
            name: _on_host(safe_get_full_fp32_param(parameter), parameter)
            for name, parameter in self._trained()
        }
        with self._gathered():
            return {
                name: trained.get(name, tensor.detach().cpu().clone())
                for name, tensor in self.drafter.state_dict().items()
            }

    def optimizer_state(self) -> OptimizerState:
        steps = [state["step"] for state in self._adamw.state.values() if "step" in state]
        return {
            name: {"step": steps[0].detach().cpu().clone()}
            | {key: _on_host(safe_get_full_optimizer_state(parameter, key), parameter) for key in MOMENTS}
            for name, parameter in self._trained()
            if steps
        }

    def load(self, weights: Weights, optimizer: OptimizerState | None) -> None:
        with self._gathered(modifier_rank=0):
            self.drafter.load_state_dict(weights)
        for name, parameter in self._trained():
            _set_whole(parameter, weights[name])
        if not optimizer:
            return
        self._make_room(next(iter(optimizer.values()))["step"])
        for name, parameter in self._trained():
            for key in MOMENTS:
                _set_whole(parameter, optimizer[name][key], key)

    def _make_room(self, step: Tensor) -> None:
        """Give AdamW the memory that it would make in its first step, for DeepSpeed to find."""
        sharded = hasattr(self._zero, "fp32_partitioned_groups_flat")
        flats = (
            self._zero.fp32_partitioned_groups_flat if sharded else self._zero.single_partition_of_fp32_groups
        )
        for flat in flats:
            self._adamw.state[flat] = {"step": step.clone()} | {
                key: torch.zeros_like(flat) for key in MOMENTS
            }
        if not sharded:
            self._zero._lazy_init_hp_params_optimizer_state()

    def _gathered(self, modifier_rank: int | None = None) -> AbstractContextManager[None]:
        gathered: AbstractContextManager[None] = deepspeed.zero.GatheredParameters(
            list(self.drafter.parameters()), modifier_rank=modifier_rank
        )
        return gathered

    def _trained(self) -> list[tuple[str, Any]]:
        return [(name, p) for name, p in self.drafter.named_parameters() if p.requires_grad]


def _copy(drafter: TrainableDrafter) -> TrainableDrafter:
    """With parameters and buffers of its own. What it holds unregistered, such as the target's frozen
    matrices, is shared."""
    shared = {id(value): value for name, value in vars(drafter).items() if not name.startswith("_")}
    return copy.deepcopy(drafter, shared)


def engine_settings(config: TrainingConfig) -> dict[str, Any]:
    """DeepSpeed's own configuration, in its own words."""
    zero: dict[str, Any] = {"stage": config.zero.stage}
    if config.zero.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": config.micro_batch_size,
        "gradient_clipping": config.grad_clip,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def _on_host(whole: Tensor, parameter: Any) -> Tensor:
    """In the shape of the whole parameter, of which stage 3 leaves an empty one behind."""
    return whole.cpu().view(getattr(parameter, "ds_shape", parameter.shape))


def _set_whole(parameter: Any, whole: Tensor, key: str | None = None) -> None:
    """Set this rank's part of a parameter's master copy, or of one of its moments."""
    if not hasattr(parameter, "ds_tensor"):
        parameter.set_full_hp_param(whole.to(parameter.device), key)
        return
    # Stage 3: equal parts of the flat parameter, the last one filled up with zeros.
    size, rank = parameter.ds_tensor.numel(), dist.get_rank()
    flat = whole.new_zeros(size * dist.get_world_size())
    flat[: whole.numel()] = whole.flatten()
    part = flat[rank * size : (rank + 1) * size].to(parameter.ds_tensor.device)
    if key is None:
        safe_set_local_fp32_param(parameter, part)
    else:
        safe_set_local_optimizer_state(parameter, part, key)
