"""The gate lets sound drafters through, and names what is wrong with the others."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from eagleray.corpus.sample import Sample
from eagleray.drafters.base import Committed, TrainableDrafter, TrainingBatch
from eagleray.drafters.blocks.chain.session import ChainSession
from eagleray.drafters.catalog import build_trainable_drafter
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.drafters.eagle3.model import Eagle3Drafter
from eagleray.engines.base import GenerationRequest
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.errors import NumericsError
from eagleray.targets.decoder import TargetDecoder
from eagleray.training.config import TrainingConfig
from eagleray.training.parity_gate import check_parity, gate_samples

CONFIG = TrainingConfig(max_length=64, learning_rate=2e-2, adam_learning_rate=2e-2)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> TargetDecoder:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=60,
        max_position_embeddings=96,
        initializer_range=0.2,
        eos_token_id=None,
    )
    folder = tmp_path_factory.mktemp("target")
    LlamaForCausalLM(config).save_pretrained(folder)
    return TargetDecoder.load(folder, torch.float32, batch_invariant=True)


@pytest.fixture(scope="module")
def emitted(decoder: TargetDecoder) -> list[Sample]:
    """Two greedy answers."""
    requests = [
        GenerationRequest(request_id=f"s{first}", prompt_ids=(first, 3, 5), max_new_tokens=20)
        for first in (7, 11)
    ]
    answers = NativeEngine(decoder, NativeEngineConfig()).generate(requests).generations
    return [
        Sample(
            sample_id=answer.request_id,
            input_ids=(*answer.prompt_ids, *answer.answer_ids),
            supervised=((3, 23),),
            prompt_tokens=3,
            answer_tokens=20,
            finish_reason="length",
            answer_origin="target",
            category="c",
            source="s",
        )
        for answer in answers
    ]


def fresh(decoder: TargetDecoder) -> TrainableDrafter:
    torch.manual_seed(1)
    return build_trainable_drafter(Eagle3Config(ttt_steps=2), decoder.heads)


def test_a_sound_drafter_passes_and_its_drafts_are_worth_something(
    decoder: TargetDecoder, emitted: list[Sample]
) -> None:
    outcome = check_parity(fresh(decoder), decoder, emitted, CONFIG)
    assert outcome.last_loss < outcome.first_loss
    assert outcome.accuracy > 0.5
    assert abs(outcome.drafted_accuracy - outcome.accuracy) < 0.1
    assert outcome.tau > 2.0


def test_a_session_that_reads_another_layer_than_the_training_step_is_caught(
    decoder: TargetDecoder, emitted: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    observe = ChainSession.observe

    def misread(self: ChainSession, committed: Committed) -> None:
        last_BQLD = committed.final_BQD[:, :, None].expand_as(committed.features_BQLD)
        observe(self, replace(committed, features_BQLD=last_BQLD))

    monkeypatch.setattr(ChainSession, "observe", misread)
    with pytest.raises(NumericsError, match="Training step and drafting session disagree"):
        check_parity(fresh(decoder), decoder, emitted, CONFIG)


def test_an_export_that_forgets_a_weight_is_caught(
    decoder: TargetDecoder, emitted: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    export = Eagle3Drafter.export_tensors

    def forgetful(self: Eagle3Drafter) -> dict[str, torch.Tensor]:
        tensors = export(self)
        return {**tensors, "norm.weight": torch.ones_like(tensors["norm.weight"])}

    monkeypatch.setattr(Eagle3Drafter, "export_tensors", forgetful)
    with pytest.raises(NumericsError, match="after export and loading"):
        check_parity(fresh(decoder), decoder, emitted, CONFIG)


def test_a_session_that_drafts_from_more_than_what_is_committed_is_caught(
    decoder: TargetDecoder, emitted: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replay's session drafts otherwise than the live one: a state that outlives its rows."""
    draft = ChainSession.draft
    opened: list[Any] = []

    def stateful(self: ChainSession, num_rows: int, depth: int) -> torch.Tensor:
        if self not in opened:
            opened.append(self)
        drafts = draft(self, num_rows, depth)
        return drafts if len(opened) < 3 else (drafts + 1) % 60

    monkeypatch.setattr(ChainSession, "draft", stateful)
    with pytest.raises(NumericsError, match=r"cycle \d+ of sample s\d+ delivered \d+ tokens live"):
        check_parity(fresh(decoder), decoder, emitted, CONFIG)


def test_a_drafter_that_learns_nothing_is_caught(
    decoder: TargetDecoder, emitted: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = Eagle3Drafter.forward

    def detached(self: Eagle3Drafter, batch: TrainingBatch) -> Any:
        terms = forward(self, batch)
        return terms._replace(loss_sum=terms.loss_sum.detach() + 0.0 * terms.loss_sum)

    monkeypatch.setattr(Eagle3Drafter, "forward", detached)
    with pytest.raises(NumericsError, match="not below the first"):
        check_parity(fresh(decoder), decoder, emitted, CONFIG)


def test_the_shortest_emitted_samples_are_chosen(samples: Callable[..., list[Sample]]) -> None:
    rows = samples((3, 9), (2, 4), (2, 4), (1, 2))
    rows[3] = replace(rows[3], answer_origin="given")
    assert [sample.sample_id for sample in gate_samples(rows)] == ["sample-1", "sample-2"]
