"""Products of every layout, and their plain twin."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from eagleray.targets import linear as linear_module
from eagleray.targets.kernels import build, panels
from eagleray.targets.linear import FrozenLinear

SHAPES = [(96, 64), (30, 50), (64, 1536), (77, 33)]


def random_layer(shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator) * 0.05, torch.randn(shape[0], generator=generator)


def random_rows(rows: int, width: int) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(2))


INVARIANT = ["panels", "onednn, invariant", "onednn"]
"""Layouts that give a row the same bits in any company, the last from three rows on; torch promises none."""


@pytest.fixture(params=[*INVARIANT, "torch"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A layout that every new layer gets, as on a machine that offers nothing better."""
    monkeypatch.setattr(linear_module, "kernel_name", lambda weight: request.param.partition(",")[0])
    return request.param


def layer_of(layout: str, shape: tuple[int, int]) -> FrozenLinear:
    return FrozenLinear(*random_layer(shape), batch_invariant=layout.endswith("invariant"))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 7, 12, 13, 33])
def test_it_equals_the_plain_twin(shape, rows, layout):
    weight_OI, bias_O = random_layer(shape)
    x_NI = random_rows(rows, shape[1])
    expected = F.linear(x_NI, weight_OI, bias_O)
    torch.testing.assert_close(layer_of(layout, shape)(x_NI), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layout", INVARIANT, indirect=True)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_beside_any_number_of_others(shape, layout):
    linear = layer_of(layout, shape)
    x_NI = random_rows(40, shape[1])
    everything = linear(x_NI)
    for rows in (3, 6, 16, 33) if layout == "onednn" else (1, 2, 3, 6, 12, 13, 16, 33):
        assert torch.equal(linear(x_NI[:rows]), everything[:rows])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_a_product_and_change_no_bit(threads):
    weight_OI, x_NI = random_layer((600, 500))[0], random_rows(5, 500)
    assert weight_OI.numel() * len(x_NI) > build.SHARED_WORK
    alone = panels.PanelWeight(weight_OI)(x_NI)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert torch.equal(panels.PanelWeight(weight_OI)(x_NI), alone)
    finally:
        torch.set_num_threads(before)


def test_rows_that_are_not_dense_are_read_as_they_are():
    weight_OI = random_layer((96, 64))[0]
    x_NI = random_rows(64, 8).T
    expected = F.linear(x_NI, weight_OI)
    torch.testing.assert_close(panels.PanelWeight(weight_OI)(x_NI), expected, atol=1e-5, rtol=1e-5)


def test_no_rows_give_no_rows():
    assert panels.PanelWeight(random_layer((96, 64))[0])(torch.empty(0, 64)).shape == (0, 96)


def test_coarse_numbers_take_the_plain_twin():
    weight_OI, bias_O = (tensor.bfloat16() for tensor in random_layer((96, 64)))
    x_NI = torch.ones(3, 64, dtype=torch.bfloat16)
    expected = F.linear(x_NI, weight_OI, bias_O)
    torch.testing.assert_close(FrozenLinear(weight_OI, bias_O)(x_NI), expected)


def test_without_a_compiler_decoding_goes_on(monkeypatch, caplog):
    monkeypatch.setattr(build, "_compiler", lambda: None)
    assert build.load_kernels.__wrapped__("panels") is None
    assert "no C compiler" in caplog.text


def test_a_compiler_that_fails_is_reported_with_its_words(monkeypatch, caplog, tmp_path: Path):
    monkeypatch.setattr(build.platformdirs, "user_cache_dir", lambda _: str(tmp_path))
    monkeypatch.setattr(build, "FLAGS", ("-no-such-flag",))
    assert build.load_kernels.__wrapped__("panels") is None
    assert "no-such-flag" in caplog.text
    assert not list((tmp_path / "kernels").iterdir())


def test_a_kernel_that_computes_something_else_is_not_used(monkeypatch, caplog):
    class Wrong(panels.PanelWeight):
        def __call__(self, x_NI):
            return super().__call__(x_NI) + 1

    monkeypatch.setattr(panels, "PanelWeight", Wrong)
    assert not panels.runs_here.__wrapped__()
    assert "wrong products" in caplog.text
