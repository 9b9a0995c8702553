"""Graphs within a program: branches, scans, maps, regions with other settings; and loops, which are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import aten_programs as programs  # noqa: E402
from torch._higher_order_ops.associative_scan import associative_scan  # noqa: E402
from torch._higher_order_ops.map import map as torch_map  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402

from gluongraph.errors import UnsupportedError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
X, H = torch.linspace(-1, 1, 12).reshape(4, 3), torch.tensor([0.3, -0.2, 0.5])


def two_results(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: (x.sin(), x * 2), lambda x: (x.cos(), x - 1), (x,))


def by_size(x: Any) -> Any:
    return torch.cond(x.shape[0] > 2, lambda x: x.sin(), lambda x: x.cos(), (x,))


def nested(x: Any) -> Any:
    def inner(x: Any) -> Any:
        return torch.cond(x.max() > 0.5, lambda x: x * 3, lambda x: x * 4, (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x.exp(), (x,))


def recurrence(x: Any, h: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        new = torch.tanh(carry * 0.5 + row)
        return new, new.sum(-1)

    return scan(step, h, x)


def from_the_end(x: Any, h: Any) -> Any:
    return scan(lambda carry, row: (carry + row, carry * row), h, x, reverse=True)


def along_columns(x: Any, h: Any) -> Any:
    return scan(lambda carry, row: (carry + row, carry * row), h, x.t(), dim=1)


def with_weights(x: Any, h: Any) -> Any:
    weight = x.t() @ x
    return scan(lambda carry, row: (carry @ weight + row, carry.clone()), h, x)


def products(x: Any) -> Any:
    return associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic")


def of_rows(x: Any) -> Any:
    return torch_map(lambda row: row.sin() * row.sum(), x)


def without_gradient(x: Any) -> Any:
    with torch.no_grad():
        held = x * 2
    return held * x


def recomputed(x: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(lambda v: v.sin().exp(), x, use_reentrant=False)


def in_half(x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = x @ x.t()
    return product.float()


def until_large(x: Any) -> Any:
    return torch.while_loop(lambda k, x: k < 3, lambda k, x: (k + 1, x * 2), (torch.tensor(0), x))


@pytest.mark.parametrize("function", [two_results, by_size, nested, products, of_rows, without_gradient, recomputed])
def test_of_one_array(function: Callable[..., Any]) -> None:
    for x in (X + 0.1, -X - 1, X + 1):
        programs.compare(function, (x,), training=True)


@pytest.mark.parametrize("function", [recurrence, from_the_end, along_columns, with_weights])
def test_scans(function: Callable[..., Any]) -> None:
    programs.compare(function, (X, H), training=True)


def test_autocast_computes_in_its_type() -> None:
    programs.compare(in_half, (X,), training=True, forward=1e-2, backward=2e-2)


def test_loops_over_data_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"how often it runs depends on data(.|\n)*help: .*scan"):
        programs.Traced(until_large, (X,), training=True)


def test_complex_numbers_and_singular_values_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"fft_rfft.*complex"):
        programs.Traced(lambda x: torch.fft.rfft(x).abs(), (X,), training=True)
    with pytest.raises(UnsupportedError, match=r"linalg_svdvals|_linalg_svd"):
        programs.Traced(lambda x: torch.linalg.svdvals(x), (X,), training=True)
