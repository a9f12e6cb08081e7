"""GPUs that an actor did not ask for are none of its business."""

import os

import ray


def hide_other_gpus() -> None:
    """Leave this process without GPUs if Ray gave it none; call it before anything asks CUDA.

    Ray lets an actor that asks for no GPU see all of them, and an engine in it would take one that belongs
    to somebody else.
    """
    if not ray.get_gpu_ids():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
