"""A recipe on paper: what it will be, and what cannot work."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from eagleray.errors import ConfigError
from eagleray.recipe.loading import load_recipe
from eagleray.recipe.plan import RecipePlan, plan_recipe
from eagleray.settings import read_yaml
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.loading import resolve_target
from jobs.plan import SHAPES, find_shape

ROOT = Path(__file__).parents[3]
RECIPES = sorted((ROOT / "configs/cluster").glob("*.yaml"))
QWEN = ROOT / "configs/cluster/qwen3_8b.yaml"
TP4 = ROOT / "configs/cluster/qwen2_5_72b_tp4.yaml"


def plan(path: Path, *overrides: str, prompts: int | None = None) -> RecipePlan:
    recipe = load_recipe(path, overrides)
    return plan_recipe(recipe, find_shape(recipe.target.model, ROOT / SHAPES), prompts)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_every_cluster_recipe_that_ships_can_work_on_its_machines(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.machines is not None
    assert all(each.steps and each.supervised_tokens for each in plan(path).trainings)


def test_the_demo_is_planned_as_it_runs() -> None:
    found = plan(ROOT / "configs/demo.yaml")
    assert (found.prompts, found.answer_tokens) == (600, 600 * 96)
    eagle3, dflash = found.trainings
    # 32 of 600 samples are kept out; 71 batches of 8 in each pass over the others.
    assert (eagle3.steps, dflash.steps) == (3 * 71, 2 * 71)
    assert (eagle3.workers, eagle3.accumulation) == (2, 1)


def test_the_shape_of_the_embedded_target_is_that_of_its_folder() -> None:
    shipped = find_shape("embedded", ROOT / SHAPES)
    real = TargetGeometry.read(resolve_target(load_recipe(ROOT / "configs/demo.yaml").target))
    for name in ("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim"):
        assert getattr(shipped, name) == getattr(real, name), name
    assert shipped.vocab_size == real.vocab_size
    assert shipped.tie_word_embeddings == real.tie_word_embeddings


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("machines.gpu_memory_gib=40", "A rank needs"),
        ("drafters.dflash.training.recompute_activations=false", "recompute_activations to true first"),
        ("drafters.dflash.training.micro_batch_size=4", "micro_batch_size to 1 or less"),
        ("drafters.eagle3.training.workers=16", "machines have 8 GPUs"),
        ("distil.max_new_tokens=4096", "an answer alone may fill it"),
        ("drafters.eagle3.training.max_length=65536", "reaches 40960 positions"),
        ("drafters.eagle3.training.features=stored", "there will be none"),
        ("drafters.eagle3.drafter.target_layer_ids=[1, 18, 36]", "layers 0 to 35"),
        ("drafters.eagle3.training.global_batch_size=400000", "samples to train on"),
        ("machines.gpus_per_node=4", "machines have 4 GPUs"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_change(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(QWEN, override)


def test_features_come_from_engines_that_run_the_target_in_its_own_numbers() -> None:
    demo = ROOT / "configs/demo.yaml"
    taken = load_recipe(demo, ["distil.engine={name: vllm, environment: there}"])
    assert taken.distil_engine.concurrency == 16
    refused = {
        "distil.engine={name: vllm, dtype: bfloat16}": "dtype is bfloat16 and target.dtype float32",
        "distil.engine={name: vllm, prefix_caching: true}": "where they are computed",
        "distil.engine={name: vllm, max_length: 96}": "96 tokens and distil.engine.max_length is 96",
        "distil.engine={name: openai, url: 'http://h:1/v1'}": "or name engine native or vllm",
    }
    for override, message in refused.items():
        with pytest.raises(ConfigError, match=message):
            load_recipe(demo, [override])


def test_several_machines_need_a_root_that_all_share() -> None:
    with pytest.raises(ConfigError, match=r"run\.root is runs, which is another folder on each of 2"):
        plan(QWEN, "machines.nodes=2", "run.root=runs")


def test_a_target_too_large_to_stand_beside_a_worker_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"target 135\.\d+ GiB.*The target takes most of it"):
        plan(QWEN, "target.model=Qwen/Qwen2.5-72B-Instruct", "drafters.eagle3.training.max_length=2560")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("machines.nodes=2", "8 workers and 4 target processes of 4 GPUs each; there are 2 machines"),
        ("drafters.eagle3.training.stream.gpus_per_worker=16", "target processes of 16 GPUs each"),
        (
            "drafters.eagle3.training.stream.gpus_per_worker=1",
            "Raise drafters.eagle3.training.stream",
        ),
        ("drafters.eagle3.training.features=colocated", "set drafters.eagle3.training.features to streamed"),
    ],
)
def test_a_target_on_gpus_of_its_own_needs_enough_of_them(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(TP4, override)


def test_a_target_process_holds_a_share_of_the_layers() -> None:
    """80 layers of 877 million bfloat16 parameters over four GPUs, and a matrix of 152,064 x 8,192."""
    stream = plan(TP4).trainings[0].stream
    assert stream is not None
    layer = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 29568 + 2 * 8192
    assert stream.weights_bytes == pytest.approx(2 * (20 * layer + 152064 * 8192), rel=1e-5)
    assert (stream.processes, stream.gpus_each) == (4, 4)


def test_prompts_that_no_source_counts_leave_tokens_open_until_someone_says() -> None:
    override = "prompts.train=[{kind: files, path: 'x/*.jsonl', category: chat}]"
    found = plan(QWEN, override)
    assert (found.prompts, found.answer_tokens, found.trainings[0].steps) == (None, None, None)
    assert plan(QWEN, override, prompts=64_128).trainings[0].steps == 2 * 1000


def test_a_plan_is_made_without_torch_ray_or_transformers() -> None:
    probe = (
        "import sys; sys.argv = ['plan', 'configs/cluster/qwen3_8b.yaml'];"
        "from jobs.plan import app; app(standalone_mode=False);"
        "heavy = {'torch', 'transformers', 'ray', 'pyarrow'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    result = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "399.5 M" in result.stdout


def test_the_kubernetes_job_asks_for_what_its_recipe_is_planned_for() -> None:
    job = read_yaml(ROOT / "configs/cluster/kubernetes/rayjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    words = job["spec"]["entrypoint"].split()
    assert (ROOT / f"{words[2].replace('.', '/')}.py").is_file()
    recipe = load_recipe(ROOT / words[words.index("--recipe") + 1])
    machines = recipe.machines
    assert machines is not None
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == machines.nodes
    (container,) = group["template"]["spec"]["containers"]
    asked = container["resources"]["limits"]
    assert int(asked["nvidia.com/gpu"]) == machines.gpus_per_node == int(group["rayStartParams"]["num-gpus"])
    assert int(asked["cpu"]) == machines.cpus_per_node
    assert asked["memory"] == f"{machines.host_memory_gib:.0f}Gi"
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert any(str(recipe.run.root).startswith(mount) for mount in mounts)
    volumes = {volume["name"] for volume in group["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    pinned = (ROOT / "constraints.txt").read_text()
    assert f"ray=={job['spec']['rayClusterSpec']['rayVersion']}" in pinned
    environment = yaml.safe_load(job["spec"]["runtimeEnvYAML"])["env_vars"]
    assert all(isinstance(value, str) for value in environment.values())
