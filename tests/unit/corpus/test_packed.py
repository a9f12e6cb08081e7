"""Packed samples are those that were packed, one at a time and in no one's memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from eagleray.corpus.packed import BATCH_ROWS, Chosen, PackedSamples, pack
from eagleray.corpus.sample import Sample


def sample(index: int) -> Sample:
    return Sample(
        sample_id=f"s{index}",
        part=index % 3,
        input_ids=tuple(range(index % 7 + 3)),
        supervised=((1, 2), (2, 3)) if index % 2 else (),
        prompt_tokens=1,
        answer_tokens=2,
        finish_reason="stop",
        answer_origin="target",
        category="c",
        source="s",
    )


@pytest.mark.parametrize("count", [0, 1, BATCH_ROWS, 2 * BATCH_ROWS + 5])
def test_every_sample_comes_back_from_its_place(tmp_path: Path, count: int) -> None:
    pack((sample(index) for index in range(count)), tmp_path / "samples.arrow")
    packed = PackedSamples(tmp_path / "samples.arrow")
    assert len(packed) == count
    assert list(packed) == [sample(index) for index in range(count)]


def test_places_are_counted_as_in_a_list(tmp_path: Path) -> None:
    pack(map(sample, range(300)), tmp_path / "samples.arrow")
    packed = PackedSamples(tmp_path / "samples.arrow")
    assert packed[299] == packed[-1] == sample(299)
    assert packed[255:258] == [sample(255), sample(256), sample(257)]
    for index in (300, -301):
        with pytest.raises(IndexError):
            packed[index]
    assert list(Chosen(packed, [7, 3, 7])) == [sample(7), sample(3), sample(7)]


def test_packing_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    def breaking() -> Iterator[Sample]:
        yield from map(sample, range(BATCH_ROWS + 1))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(breaking(), tmp_path / "samples.arrow")
    assert list(tmp_path.iterdir()) == []


def test_packing_holds_a_batch_and_not_the_dataset(tmp_path: Path) -> None:
    """Counts samples that are alive: all that were made and not yet let go."""
    alive = 0
    most = 0

    class Counted(tuple):  # type: ignore[type-arg]
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def stream() -> Iterator[Sample]:
        nonlocal alive, most
        for index in range(6 * BATCH_ROWS):
            made = sample(index)
            object.__setattr__(made, "input_ids", Counted(made.input_ids))
            alive += 1
            most = max(most, alive)
            yield made

    pack(stream(), tmp_path / "samples.arrow")
    assert most <= 2 * BATCH_ROWS + 1
