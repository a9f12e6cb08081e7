from types import SimpleNamespace

import torch

from eagleray.evaluation.regime import describe_machine, workload_hash


def test_the_fingerprint_follows_every_field(pretend: SimpleNamespace) -> None:
    base = pretend.regime()
    assert base.fingerprint == pretend.regime().fingerprint
    changes = {
        "dtype": "bfloat16",
        "workers": 2,
        "drafter_hashes": {"good": "other"},
        "timing_new_tokens": 14,
    }
    fingerprints = {pretend.regime(**{field: value}).fingerprint for field, value in changes.items()}
    assert len(fingerprints | {base.fingerprint}) == len(changes) + 1


def test_the_machine_says_how_many_threads_measured() -> None:
    assert describe_machine().threads == torch.get_num_threads()
    assert describe_machine().cpu_model


def test_the_workload_hash_follows_the_ids(pretend: SimpleNamespace) -> None:
    assert workload_hash({"a": pretend.prompts("a", 2)}) != workload_hash({"a": pretend.prompts("a", 3)})
