"""The same bits from run to run, or an error that names the operation which cannot give them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from eagleray.errors import ConfigError

CUBLAS_ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""Two buffers of fixed size for each handle of cuBLAS, which reads this once, before its first product."""

REFUSALS = ("does not have a deterministic implementation", "CUBLAS_WORKSPACE_CONFIG")
"""How torch says that an operation, or a product of cuBLAS without the variable, is not deterministic."""


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Refuse operations that may give other bits from run to run, as long as this is open.

    Raises:
        ConfigError: Such an operation was run. torch names the first that it meets.
    """
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        told = str(error)
        if not any(refusal in told for refusal in REFUSALS):
            raise
        raise ConfigError(
            f"training.deterministic is true, and a step runs an operation that torch cannot repeat bit for "
            f"bit: {told.split('. ')[0]}. Set training.deterministic to false, or train on other devices or "
            "with another setting of the drafter."
        ) from error
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned_only)
