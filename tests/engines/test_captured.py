"""Features that vLLM captures while it answers: those of the native engine, layer by layer."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from eagleray.corpus.chat import ChatTemplate
from eagleray.corpus.prompt import Message, Prompt
from eagleray.corpus.sample import Sample
from eagleray.corpus.shards import read_shard
from eagleray.corpus.storage import LocalFolder
from eagleray.distillation.plan import ShardJob
from eagleray.distillation.shard_distiller import ShardDistiller
from eagleray.distillation.target_answers import TargetAnswers
from eagleray.drafters.catalog import build_trainable_drafter
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.engines.base import GenerationRequest
from eagleray.engines.vllm.config import VllmConfig
from eagleray.engines.vllm.engine import VllmEngine
from eagleray.errors import EngineError
from eagleray.targets.decoder import TargetDecoder
from eagleray.targets.embedded import prepare_embedded
from eagleray.targets.feature_store import FeatureStore
from eagleray.targets.loading import load_tokenizer
from eagleray.training.collate import collate
from eagleray.training.config import TrainingConfig
from eagleray.training.feature_audit import FeatureAudit, relative_errors
from eagleray.training.features import ColocatedFeatures, FeatureSource, StoredFeatures
from eagleray.training.optimizer import DrafterOptimizer
from eagleray.training.rows import first_row
from tests.unit.conftest import KEY as OTHER_KEY

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

LAYERS = (1, 14, 29)
"""Early, in the middle, and the last, whose output is the state that the final norm takes."""
WORST_RELATIVE_ERROR = 1e-4
"""Of a position, in float32: kernels differ in the order of their sums alone."""
LEAST_COSINE = 0.999
TRAINING_STEPS = 6
KEY = OTHER_KEY.model_copy(update={"engine": "vllm", "max_new_tokens": 32, "rows_per_shard": 8})
QUESTIONS = ("What is the capital of France?", "Say hi.", "Write a Python function that adds two numbers.")


@pytest.fixture(scope="module")
def folder() -> Path:
    return prepare_embedded()


@pytest.fixture(scope="module")
def decoder(folder: Path) -> TargetDecoder:
    return TargetDecoder.load(folder, torch.float32)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[VllmEngine]:
    environment = Path(os.environ.get("VLLM_ENV", ".venv-vllm"))
    engine = VllmEngine(VllmConfig(environment=environment, threads=1), folder, LAYERS)
    yield engine
    engine.close()
    assert not engine.scratch.exists()


@pytest.fixture(scope="module")
def chat(folder: Path) -> ChatTemplate:
    return ChatTemplate(load_tokenizer(folder))


@dataclass(frozen=True)
class Distilled:
    """A shard that vLLM answered, its stored features, and what the audit found in them."""

    samples: Sequence[Sample]
    store: FeatureStore
    audit: FeatureAudit


@pytest.fixture(scope="module")
def distilled(
    engine: VllmEngine, chat: ChatTemplate, decoder: TargetDecoder, tmp_path_factory: pytest.TempPathFactory
) -> Distilled:
    folder = tmp_path_factory.mktemp("distilled")
    store = FeatureStore(folder / "features", LAYERS, torch.float32)
    audit = FeatureAudit(store, decoder, share=1.0)
    answers = TargetAnswers(engine, chat, KEY, 256, concurrency=4, capture_layers=LAYERS)
    distiller = ShardDistiller(answers, KEY, LocalFolder(folder / "data"), store, audit.check)
    messages = [(Message("user", question),) for question in QUESTIONS]
    # An answer of two turns: its second prompt holds the first answer.
    messages.append((*messages[0], Message("assistant", ""), Message("user", "And of Italy?")))
    prompts = tuple(Prompt(messages=one, category="c", source="s", licence="l") for one in messages)
    (entry,) = distiller.publish([ShardJob(index=0, prompts=prompts)])
    samples = read_shard(distiller.storage, entry.shard).samples
    assert len(samples) == audit.audited_rows == len(prompts)
    return Distilled(samples, store, audit)


def test_distilled_features_are_those_of_the_native_target_and_of_no_neighbouring_layer(
    engine: VllmEngine, distilled: Distilled, decoder: TargetDecoder, tmp_path: Path
) -> None:
    store = distilled.store
    assert distilled.audit.worst_relative_error < WORST_RELATIVE_ERROR
    neighbours = FeatureStore(tmp_path, (2, 15, 28), torch.float32)
    for sample in distilled.samples:
        stored_TLD, final_TD = store.get(sample.sample_id, sample.input_ids)
        ids_BT = torch.tensor([sample.input_ids[:-1]])
        computed_BTLD, computed_BTD = decoder.capture(ids_BT, torch.tensor([ids_BT.shape[1]]), LAYERS)
        assert final_TD.shape == (len(sample.input_ids) - 1, decoder.geometry.hidden_size)
        for stored, computed in [(stored_TLD, computed_BTLD[0]), (final_TD, computed_BTD[0])]:
            assert torch.cosine_similarity(stored, computed, dim=-1).min() > LEAST_COSINE
        # The same values under neighbouring ids are far off: the test sees a layer that is one too many.
        neighbours.put(sample.sample_id, sample.input_ids, stored_TLD, final_TD)
        off_TL = relative_errors(neighbours, sample, decoder)[:, : len(LAYERS)]
        assert (off_TL.median(dim=0).values > 100 * WORST_RELATIVE_ERROR).all()
    left = {path.name for path in engine.scratch.iterdir()} - {"owner", "server.log"}
    # The engine's own question at the start is the only one that nobody reads.
    assert len(left) == 2
    assert {name.partition(".")[2] for name in left} == {"safetensors", "safetensors.lock"}


def test_a_drafter_trains_on_them_as_on_computed_ones(distilled: Distilled, decoder: TargetDecoder) -> None:
    rows = [first_row(sample, 256) for sample in distilled.samples]
    ids = torch.tensor([token for sample in distilled.samples for token in sample.input_ids])
    counts_V = torch.bincount(ids, minlength=decoder.geometry.vocab_size)
    config = Eagle3Config(target_layer_ids=LAYERS, draft_vocab_size=256, ttt_steps=2)

    def losses(source: FeatureSource) -> list[float]:
        torch.manual_seed(0)
        drafter = build_trainable_drafter(config, decoder.heads, counts_V)
        optimizer = DrafterOptimizer(drafter, TrainingConfig(learning_rate=4e-3, adam_learning_rate=2e-3))
        found = []
        for step in range(TRAINING_STEPS):
            terms = drafter(collate(rows, source, seed=step, device=torch.device("cpu")))
            loss = terms.loss_sum / terms.weight_sum
            loss.backward()
            optimizer.step(1.0)
            found.append(loss.item())
        return found

    stored = losses(StoredFeatures(distilled.store, LAYERS, cache_bytes=2**24))
    assert stored[0] == pytest.approx(losses(ColocatedFeatures(decoder, LAYERS))[0], rel=1e-3)
    assert stored[-1] < 0.8 * stored[0]


def test_an_answer_of_one_token_brings_the_prompt_s_features_alone(
    engine: VllmEngine, chat: ChatTemplate
) -> None:
    prompt_ids = chat.encode(chat.ask([Message("user", "Say hi.")]))
    request = GenerationRequest(request_id="one", prompt_ids=prompt_ids, max_new_tokens=1)
    (generation,) = engine.generate([request], capture_layers=LAYERS).generations
    assert generation.captured is not None
    assert generation.captured.features_TLD.shape[:2] == (len(prompt_ids), len(LAYERS))


def test_other_layers_than_the_server_captures_are_refused(engine: VllmEngine) -> None:
    with pytest.raises(EngineError, match=r"captures \(1, 14, 29\)"):
        engine.open_stream(capture_layers=(1, 14))
