"""Tiny random targets of every supported family, as Hugging Face folders and models."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

VOCAB_SIZE = 160
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "Llama", "head_dim": 32, "attention_bias": True},
    "llama-tied": {"architecture": "Llama", "tie_word_embeddings": True},
    "llama-llama3-rope": {
        "architecture": "Llama",
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 100000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "llama-yarn-rope": {
        "architecture": "Llama",
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "mistral": {"architecture": "Mistral", "sliding_window": 4096},
    "qwen2": {"architecture": "Qwen2"},
    "qwen3": {"architecture": "Qwen3", "head_dim": 32},
}


@dataclass(frozen=True)
class Twin:
    """A target in a folder, and the model of transformers that it was saved from."""

    folder: Path
    reference: Any


def _make_twin(folder: Path, architecture: str, **settings: Any) -> Twin:
    import transformers

    shape = {
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 256,
    }
    config = getattr(transformers, f"{architecture}Config")(**{**shape, **settings})
    torch.manual_seed(0)
    model = getattr(transformers, f"{architecture}ForCausalLM")(config).eval()
    # Norms start at one and biases at zero, where a misplaced one would not show.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(folder)
    return Twin(folder=folder, reference=model)


@pytest.fixture(scope="session")
def make_twin() -> Callable[..., Twin]:
    return _make_twin


@pytest.fixture(scope="session", params=FAMILIES)
def twin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Twin:
    return _make_twin(tmp_path_factory.mktemp(request.param), **FAMILIES[request.param])


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    return _make_twin(tmp_path_factory.mktemp("plain-llama"), "Llama")
