"""Inspect: what a distilled dataset holds. `python -m jobs.inspect runs/demo/dataset`. Needs no cluster."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from eagleray.corpus.accounting import TruncationLedger
from eagleray.corpus.inspection import Inspection, inspect_dataset, segments
from eagleray.corpus.sample import Sample
from eagleray.corpus.storage import open_storage
from eagleray.corpus.windows import LongSamples
from eagleray.errors import ArtifactError, DataError
from eagleray.settings import validate
from eagleray.targets.config import TargetConfig
from eagleray.targets.loading import resolve_target
from jobs import console
from jobs.dataset_view import show

NUM_SAMPLES = 3
Decode = Callable[[Sample, int, int], str]

FolderArgument = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER",
        help="A dataset folder, e.g. runs/demo/dataset, or a storage address.",
        show_default=False,
    ),
]
MaxLengthOption = Annotated[
    list[int] | None,
    typer.Option(
        help="Account for sequences cut to this many tokens. May be given several times. Default: what the "
        "drafters of the run use, if the folder is part of one.",
        min=2,
        show_default=False,
    ),
]
TokenizerOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the tokenizer.json that writes samples as text. Default: the target's.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    folder: FolderArgument,
    max_length: MaxLengthOption = None,
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print counts, lengths, categories, rejects, truncation and three samples of a dataset.

    Exit code 3 if there is no dataset or a part of it is damaged.
    """
    console.run(lambda _, out: _inspect(folder, max_length, tokenizer, as_json, out))


def _inspect(
    folder: str, max_length: list[int] | None, tokenizer: Path | None, as_json: bool, out: Console
) -> None:
    ledgers = {f"max_length {length}": TruncationLedger(length) for length in max_length or ()}
    ledgers = ledgers or _training_ledgers(folder) or {"uncut": TruncationLedger(None)}
    found = inspect_dataset(open_storage(folder), ledgers, NUM_SAMPLES)
    decode = _decoder(tokenizer, found)
    if as_json:
        # Straight to stdout: a console would wrap and style what programs read.
        sys.stdout.write(json.dumps(_as_data(folder, found, decode), ensure_ascii=False) + "\n")
    else:
        show(folder, found, decode, out)
    if damaged := found.summary.damaged_shards:
        raise DataError(
            f"{len(damaged)} of {found.summary.shards} shards are damaged: {', '.join(damaged)}. "
            "Run the distil job of this dataset's recipe with --repair."
        )


def _training_ledgers(folder: str) -> dict[str, TruncationLedger]:
    recipe = Path(folder).resolve().parent / "recipe.json"
    if not recipe.is_file():
        return {}
    drafters = json.loads(recipe.read_text(encoding="utf-8"))["drafters"]
    labels: dict[tuple[int, LongSamples], list[str]] = {}
    for label, section in drafters.items():
        training = section["training"]
        labels.setdefault((training["max_length"], training["long_samples"]), []).append(label)
    return {", ".join(names): TruncationLedger(*cut) for cut, names in labels.items()}


def _decoder(folder: Path | None, found: Inspection) -> Decode:
    """Writes spans of samples as text; as ids where there is no tokenizer."""
    # The bare library starts in milliseconds; transformers takes seconds.
    from tokenizers import Tokenizer

    try:
        folder = folder or resolve_target(
            validate(TargetConfig, found.manifest.regime.get("target", {}), "target of the dataset")
        )
    except ArtifactError:
        return lambda sample, start, end: " ".join(map(str, sample.input_ids[start:end]))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def decode(sample: Sample, start: int, end: int) -> str:
        return str(tokenizer.decode(sample.input_ids[start:end], skip_special_tokens=False))

    return decode


def _as_data(folder: str, found: Inspection, decode: Decode) -> dict[str, Any]:
    return {
        "folder": folder,
        "complete": found.manifest.complete,
        "content_hash": found.manifest.content_hash(),
        "key": found.manifest.key.model_dump(mode="json"),
        "regime": found.manifest.regime,
        "summary": found.summary.model_dump(mode="json"),
        "truncation": {name: one.model_dump(mode="json") for name, one in found.truncation.items()},
        "samples": [
            {
                "sample_id": sample.sample_id,
                "category": sample.category,
                "tokens": len(sample.input_ids),
                "segments": [
                    {"supervised": supervised, "text": decode(sample, start, end)}
                    for start, end, supervised in segments(sample)
                ],
            }
            for sample in found.samples
        ],
    }


if __name__ == "__main__":
    app()
