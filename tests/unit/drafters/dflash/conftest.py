"""DFlash in all its forms, for the tests that hold for each of them."""

from typing import Any

import pytest

from eagleray.drafters.dflash.config import DFlashConfig

FORMS: dict[str, dict[str, Any]] = {
    "full": {},
    "diffusion only": {"kv_injection": False},
    "injection only": {"parallel_block": False},
    "neither": {"kv_injection": False, "parallel_block": False},
    "sliding": {
        "layer_types": ("full_attention", "sliding_attention"),
        "sliding_window": 6,
        "is_causal": None,
    },
    "sliding, whole block visible": {"layer_types": ("sliding_attention",) * 2, "sliding_window": 6},
    "sliding, diffusion only": {
        "kv_injection": False,
        "layer_types": ("sliding_attention", "full_attention"),
        "sliding_window": 6,
    },
    "causal": {"is_causal": True},
    "two denoising steps": {"denoise_steps": 2},
}


@pytest.fixture(params=FORMS.values(), ids=FORMS)
def form(request: pytest.FixtureRequest) -> DFlashConfig:
    """Blocks of five slots in one of the forms."""
    return DFlashConfig(block_size=5, **request.param)
