"""Windows of long samples: everything is learnt once, behind enough context."""

from hypothesis import given
from hypothesis import strategies as st

from eagleray.corpus.windows import CONTEXT_SHARE, Window, cut_windows


@st.composite
def samples(draw: st.DrawFn) -> tuple[int, tuple[tuple[int, int], ...]]:
    """A length, and spans within it that are apart."""
    edges = sorted(draw(st.sets(st.integers(1, 120), min_size=2, max_size=10)))
    spans = tuple(zip(edges[::2], edges[1::2], strict=False))
    return spans[-1][1] + draw(st.integers(0, 20)), spans


def positions(spans: tuple[tuple[int, int], ...]) -> list[int]:
    return [position for start, end in spans for position in range(start, end)]


@given(sample=samples(), max_length=st.integers(8, 60))
def test_every_supervised_token_is_taught_once_unless_it_is_the_first_and_ends_a_window(
    sample: tuple[int, tuple[tuple[int, int], ...]], max_length: int
) -> None:
    tokens, spans = sample
    windows = cut_windows(tokens, spans, max_length, "window")
    taught = [position for window in windows for position in positions(window.supervised)]
    assert taught == sorted(set(taught))
    assert set(taught) <= set(positions(spans))
    for start, end in spans:
        # The first token of an answer may be the last of a window: no draft can start from it there.
        assert set(range(start, end)) - set(taught) <= {start}


@given(sample=samples(), max_length=st.integers(8, 60))
def test_windows_fit_and_what_they_teach_stands_behind_context(
    sample: tuple[int, tuple[tuple[int, int], ...]], max_length: int
) -> None:
    tokens, spans = sample
    for window in cut_windows(tokens, spans, max_length, "window"):
        assert 0 <= window.start < window.end <= tokens
        assert window.end - window.start <= max_length
        first = window.supervised[0][0]
        assert window.start == 0 or first - window.start >= max_length // CONTEXT_SHARE
        assert window.anchors >= 1


@given(sample=samples(), max_length=st.integers(2, 200))
def test_a_clip_is_the_beginning_and_a_short_sample_is_one_window_both_ways(
    sample: tuple[int, tuple[tuple[int, int], ...]], max_length: int
) -> None:
    tokens, spans = sample
    clipped = cut_windows(tokens, spans, max_length, "clip")
    assert len(clipped) <= 1
    kept = [position for position in positions(spans) if position < max_length]
    assert clipped == [] or positions(clipped[0].supervised) == kept
    if tokens <= max_length:
        assert cut_windows(tokens, spans, max_length, "window") == clipped


def test_windows_by_hand() -> None:
    assert cut_windows(40, [(10, 38)], 16, "window") == [
        Window(0, 16, ((10, 16),)),
        Window(12, 28, ((16, 28),)),
        Window(24, 40, ((28, 38),)),
    ]
    # A prompt that fills more than the window: its end is the context of the answer.
    assert cut_windows(40, [(30, 40)], 16, "window") == [Window(26, 40, ((30, 40),))]
    assert cut_windows(40, [(30, 40)], 16, "clip") == []
    # The end of an answer is never left alone behind a window.
    assert cut_windows(17, [(3, 17)], 16, "window") == [
        Window(0, 15, ((3, 15),)),
        Window(11, 17, ((15, 17),)),
    ]
    # Nothing is spent on what lies between answers.
    assert cut_windows(100, [(2, 4), (90, 100)], 16, "window") == [
        Window(0, 16, ((2, 4),)),
        Window(86, 100, ((90, 100),)),
    ]
