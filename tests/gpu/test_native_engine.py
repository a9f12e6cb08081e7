"""The native engine on a GPU answers as it does on the CPU, with and without drafts."""

from pathlib import Path

import pytest
import torch

from eagleray.drafters.catalog import build_drafter, build_trainable_drafter
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.drafters.folder import export_drafter, load_drafter
from eagleray.drafters.prompt_lookup.config import PromptLookupConfig
from eagleray.engines.base import DraftSetting, GenerationRequest
from eagleray.engines.catalog import build_engine
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.targets.config import TargetConfig
from eagleray.targets.loading import resolve_target

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("drafter", [None, "prompt_lookup", "eagle3"])
def test_drafted_answers_on_a_gpu_are_plain_ones(tmp_path: Path, drafter: str | None) -> None:
    engine = build_engine(NativeEngineConfig(), resolve_target(TargetConfig()), "float32")
    heads = engine.decoder.heads
    assert engine.decoder.device.type == "cuda"
    requests = [
        GenerationRequest(request_id=str(n), prompt_ids=tuple(range(50, 90 + n)), max_new_tokens=24)
        for n in range(3)
    ]
    source = None
    if drafter == "prompt_lookup":
        source = build_drafter(PromptLookupConfig(name="prompt_lookup"), heads)
    elif drafter == "eagle3":
        counts_V = torch.ones(engine.decoder.geometry.vocab_size, dtype=torch.int64)
        config = Eagle3Config(name="eagle3", draft_vocab_size=512)
        export_drafter(build_trainable_drafter(config, heads, counts_V), tmp_path / "drafter", {})
        source = load_drafter(tmp_path / "drafter", heads).eval()
    plain = engine.generate(requests).generations
    drafted = engine.generate(requests, draft=source and DraftSetting(source=source, depth=4)).generations
    assert [one.answer_ids for one in drafted] == [one.answer_ids for one in plain]
