"""Distributions by hand, and draws that invert them exactly."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagleray.speculation.config import GREEDY, SamplingConfig
from eagleray.speculation.sampling import Uniforms, draw, probabilities

# Probabilities 1/2, 1/4, 1/8, 1/16, 1/16 of tokens 1, 3, 0, 2, 4.
HALVES = [1 / 8, 1 / 2, 1 / 16, 1 / 4, 1 / 16]


def distribution(weights: list[float], **sampling) -> list[float]:
    logits_11V = torch.tensor(weights, dtype=torch.float64).log()[None, None] + 3.0
    return probabilities(logits_11V, [SamplingConfig(**sampling)])[0, 0].tolist()


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"temperature": 1.0}, HALVES),
        # Probabilities squared: 1/64, 1/4, 1/256, 1/16, 1/256 over their sum 86/256.
        ({"temperature": 0.5}, [4 / 86, 64 / 86, 1 / 86, 16 / 86, 1 / 86]),
        ({"temperature": 1.0, "top_k": 2}, [0, 2 / 3, 0, 1 / 3, 0]),
        # Of the equal tokens 2 and 4 the lower id is the fourth.
        ({"temperature": 1.0, "top_k": 4}, [2 / 15, 8 / 15, 1 / 15, 4 / 15, 0]),
        ({"temperature": 1.0, "top_p": 0.49}, [0, 1, 0, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.51}, [0, 2 / 3, 0, 1 / 3, 0]),
        ({"temperature": 1.0, "min_p": 0.25}, [1 / 7, 4 / 7, 0, 2 / 7, 0]),
        ({"temperature": 1.0, "min_p": 1.0}, [0, 1, 0, 0, 0]),
        # After top_k they are 2/3 and 1/3, so half of the mass is token 1 alone.
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.6}, [0, 1, 0, 0, 0]),
        # Temperature first: without it top_p would keep one token.
        (
            {"temperature": 2.0, "top_p": 0.5, "min_p": 0.7},
            [0, 2 / (2 + 2**0.5), 0, 2**0.5 / (2 + 2**0.5), 0],
        ),
        ({"temperature": 0.0}, [0, 1, 0, 0, 0]),
        ({"temperature": 0.0, "top_k": 3, "top_p": 0.9, "min_p": 0.1}, [0, 1, 0, 0, 0]),
    ],
)
def test_filters_apply_one_after_another(sampling, expected):
    assert distribution(HALVES, **sampling) == pytest.approx(expected)


def test_every_row_has_its_own_settings():
    samplings = [
        SamplingConfig(temperature=1.0, top_k=2),
        GREEDY,
        SamplingConfig(temperature=1.0),
        SamplingConfig(temperature=1.0, min_p=0.25),
    ]
    logits_BPV = torch.randn(4, 3, 9, generator=torch.Generator().manual_seed(0))
    together = probabilities(logits_BPV, samplings)
    for row, sampling in enumerate(samplings):
        alone = probabilities(logits_BPV[row : row + 1], [sampling])
        assert torch.equal(together[row], alone[0])


logits_of_rows = st.lists(st.integers(-6, 6), min_size=2, max_size=8)


@settings(max_examples=50)
@given(
    logits_of_rows,
    st.floats(0.1, 3.0),
    st.none() | st.integers(1, 9),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0),
)
def test_what_is_kept_is_a_run_of_the_likeliest_tokens_in_the_targets_proportions(
    logits, temperature, top_k, top_p, min_p
):
    sampling = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logits_V = torch.tensor(logits, dtype=torch.float64)
    filtered_V = probabilities(logits_V[None, None], [sampling])[0, 0]
    unfiltered_V = (logits_V / temperature).softmax(0)
    kept_V = filtered_V > 0
    assert filtered_V.sum().item() == pytest.approx(1)
    assert kept_V[logits_V.argmax()]
    assert kept_V.sum() <= (top_k or len(logits))
    assert unfiltered_V[kept_V].min() >= unfiltered_V[~kept_V].max() if not kept_V.all() else True
    torch.testing.assert_close(filtered_V[kept_V], unfiltered_V[kept_V] / unfiltered_V[kept_V].sum())


@settings(max_examples=50)
@given(logits_of_rows, st.floats(0, 1, exclude_max=True))
def test_a_temperature_near_zero_is_greedy(logits, uniform):
    logits_11V = torch.tensor([[logits]], dtype=torch.float32)
    logits_11V[0, 0, logits_11V.argmax()] += 1
    for temperature in (1e-6, 5e-324):
        cold = probabilities(logits_11V, [SamplingConfig(temperature=temperature)])
        assert torch.equal(cold, probabilities(logits_11V, [GREEDY]))
        drawn = draw(cold, torch.tensor([[uniform]], dtype=torch.float64))
        assert drawn.item() == logits_11V.argmax().item()


def test_a_draw_inverts_the_cumulative_sum():
    uniforms = torch.tensor(
        [0.0, 0.124, 0.125, 0.624, 0.625, 0.6874, 0.6875, 0.9374, 0.9375, math.nextafter(1, 0)]
    )
    weights = torch.tensor(HALVES, dtype=torch.float64).expand(10, 5)
    assert draw(weights, uniforms.double()).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert draw(weights * 7, uniforms.double()).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from([0.0, 1e-12, 0.1, 0.3, 1.0]), min_size=1, max_size=9).filter(any),
    st.floats(0, 1, exclude_max=True) | st.just(math.nextafter(1, 0)),
)
def test_what_has_no_probability_is_never_drawn(weights, uniform):
    token = draw(torch.tensor(weights, dtype=torch.float64), torch.tensor(uniform, dtype=torch.float64))
    assert weights[token.item()] > 0


def test_each_place_has_its_number_however_it_is_asked_for():
    whole, pieces = Uniforms(5).span(0, 8), Uniforms(5)
    assert pieces.span(2, 3) == whole[2:5]
    assert pieces.span(0, 1) + pieces.span(1, 7) == whole
    assert Uniforms(6).span(0, 8) != whole
    assert all(0 <= number < 1 for number in whole)
