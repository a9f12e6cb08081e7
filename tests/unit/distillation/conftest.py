"""The embedded target's tokenizer beside a tiny random target of the same vocabulary."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.targets.decoder import TargetDecoder
from eagleray.targets.embedded import prepare_embedded
from eagleray.targets.loading import load_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return load_tokenizer(prepare_embedded())


@pytest.fixture(scope="session")
def tiny_engine(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> NativeEngine:
    folder = tmp_path_factory.mktemp("tiny-target")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=tokenizer.eos_token_id,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    decoder = TargetDecoder.load(Path(folder), torch.float32)
    return NativeEngine(decoder, NativeEngineConfig(max_batch_size=4))
