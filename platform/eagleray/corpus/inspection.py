"""A look at a dataset on disk: counts, accounts and a few samples, finished or not, damaged or not."""

from collections.abc import Mapping
from dataclasses import dataclass

from eagleray.corpus.accounting import TruncationAccount, TruncationLedger, sample_extent
from eagleray.corpus.manifest import Manifest, read_manifest
from eagleray.corpus.sample import Sample
from eagleray.corpus.storage import Storage
from eagleray.corpus.summary import DatasetSummary, DatasetSurvey


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What one pass over a dataset found."""

    manifest: Manifest
    summary: DatasetSummary
    truncation: dict[str, TruncationAccount]
    """By name of the ledger; empty when there are no samples."""
    samples: tuple[Sample, ...]
    """A few, spread evenly over the dataset."""


def inspect_dataset(
    storage: Storage, ledgers: Mapping[str, TruncationLedger], num_samples: int
) -> Inspection:
    """Read every published shard once.

    Args:
        ledgers: Name -> empty ledger of the cut to account for.

    Raises:
        DataError: There is no dataset, or its manifest is damaged. A damaged shard is reported instead.
    """
    manifest = read_manifest(storage)
    survey = DatasetSurvey(storage, manifest)
    chosen = {manifest.rows * number // num_samples for number in range(num_samples)}
    samples = []
    for position, sample in enumerate(survey.samples()):
        for ledger in ledgers.values():
            ledger.enter(sample_extent(sample))
        if position in chosen:
            samples.append(sample)
    accounts = {name: ledger.close() for name, ledger in ledgers.items()}
    return Inspection(
        manifest=manifest,
        summary=survey.summary(),
        truncation={name: found for name, found in accounts.items() if found is not None},
        samples=tuple(samples),
    )


def segments(sample: Sample) -> list[tuple[int, int, bool]]:
    """Cut a sample where supervision begins or ends: start, end, supervised."""
    cuts, position = [], 0
    for start, end in sample.supervised:
        cuts += [(position, start, False), (start, end, True)]
        position = end
    cuts.append((position, len(sample.input_ids), False))
    return [cut for cut in cuts if cut[0] < cut[1]]
