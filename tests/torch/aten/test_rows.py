"""The table of ATen's operators beside PyTorch: every row, its results, element types and gradients; random numbers."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import aten_rows as rows  # noqa: E402
from aten_samples import SAMPLES, b, f, t  # noqa: E402

from gluongraph.errors import UnsupportedError  # noqa: E402
from gluongraph.torch.aten.draws import draws_of  # noqa: E402
from gluongraph.torch.aten.table import ATEN, IGNORED, REFUSED, TABLE  # noqa: E402

N = 4096
WIDE = (torch.zeros(N, dtype=torch.float64),)
# Arguments, and mean and variance of what is drawn; None where they do not exist.
RANDOM: dict[str, tuple[tuple[Any, ...], dict[str, Any], float | None, float | None]] = {
    "rand.default": (([N],), {}, 1 / 2, 1 / 12),
    "rand_like.default": (WIDE, {}, 1 / 2, 1 / 12),
    "randn.default": (([N],), {}, 0, 1),
    "randn_like.default": (WIDE, {}, 0, 1),
    "randint.default": ((6, [N]), {}, 2.5, 35 / 12),
    "randint.low": ((-2, 4, [N]), {}, 0.5, 35 / 12),
    "randint_like.default": ((*WIDE, 6), {}, 2.5, 35 / 12),
    "randint_like.low_dtype": ((*WIDE, -2, 4), {}, 0.5, 35 / 12),
    "randperm.default": ((N,), {}, (N - 1) / 2, (N * N - 1) / 12),
    "uniform.default": ((*WIDE, -1.0, 3.0), {}, 1, 16 / 12),
    "normal_functional.default": ((*WIDE, 1.0, 2.0), {}, 1, 4),
    "normal.Tensor_Tensor": ((torch.full((N,), 2.0), torch.full((N,), 0.5)), {}, 2, 1 / 4),
    "normal.Tensor_float": ((torch.full((N,), 2.0), 0.5), {}, 2, 1 / 4),
    "normal.float_Tensor": ((2.0, torch.full((N,), 0.5)), {}, 2, 1 / 4),
    "normal.float_float": ((2.0, 0.5, [N]), {}, 2, 1 / 4),
    "bernoulli.default": ((torch.full((N,), 0.3),), {}, 0.3, 0.21),
    "bernoulli.p": ((*WIDE, 0.3), {}, 0.3, 0.21),
    "bernoulli.Tensor": ((*WIDE, torch.tensor(0.3, dtype=torch.float64)), {}, 0.3, 0.21),
    "exponential.default": ((*WIDE, 2.0), {}, 1 / 2, 1 / 4),
    "cauchy.default": ((*WIDE, 0.0, 1.0), {}, None, None),
    "log_normal.default": ((*WIDE, 0.1, 0.5), {}, math.exp(0.225), (math.exp(0.25) - 1) * math.exp(0.45)),
    "geometric.default": ((*WIDE, 0.4), {}, 2.5, 3.75),
    "multinomial.default": ((torch.tensor([1.0, 2.0, 1.0]), N, True), {}, 1, 1 / 2),
}
# In training; the scale of what is kept makes the mean that of the input, ones.
DROPOUT = {"dropout.default": 1 / 3, "native_dropout.default": 1 / 3, "feature_dropout.default": 1 / 3}
# Zeros here, anything in PyTorch.
EMPTY: dict[str, tuple[Any, ...]] = {
    "empty.memory_format": ([2, 3],),
    "empty_like.default": (torch.ones(2, 3),),
    "new_empty.default": (torch.ones(1), [2, 3]),
    "empty_permuted.default": ([2, 3], [0, 1]),
    "empty_strided.default": ([2, 3], [3, 1]),
    "new_empty_strided.default": (torch.ones(1), [2, 3], [3, 1]),
}
# Eigenvectors are unique up to their sign.
OTHERS = {"linalg_eigh.default", "_linalg_eigh.default"}


@pytest.mark.parametrize("key", sorted(SAMPLES))
@pytest.mark.filterwarnings("ignore")
def test_row(key: str) -> None:
    for sample in SAMPLES[key]:
        for each in (sample, sample.single()):
            if each is not None:
                try:
                    rows.compare(key, each)
                except Exception as error:
                    raise AssertionError(f"{key}{each}: {error}") from error


def test_every_row_is_an_operator_with_samples() -> None:
    table = {key.removeprefix(ATEN) for key in TABLE if key.startswith(ATEN)}
    tested = {*SAMPLES, *RANDOM, *EMPTY, *OTHERS}
    assert sorted(table - tested) == []
    assert sorted(tested - table) == []
    for key in (*table, *(k.removeprefix(ATEN) for k in (*REFUSED, *IGNORED) if k.startswith(ATEN))):
        rows.torch_operator(key)  # PyTorch has it
    assert not set(TABLE) & (set(REFUSED) | IGNORED)


def refused() -> str:
    """The list of docs/pytorch.md: why, which operators, and the way out."""
    named: dict[tuple[str, str], list[str]] = {}
    for key, reason in REFUSED.items():
        library, name, *overload = key.split(".")
        short = name if library == "aten" else f"{library}.{name}"
        if overload != ["default"] and any(k.startswith(f"{ATEN}{name}.") for k in TABLE):
            short = f"{name}.{overload[0]}"  # others of the name are there
        if not name.startswith("_"):
            named.setdefault(reason, []).append(short)
    lines = [f"* {why} (instead: {help}): {', '.join(f'`{n}`' for n in names)}" for (why, help), names in named.items()]
    return "\n".join("\n".join(textwrap.wrap(line, 118, subsequent_indent="  ")) for line in lines)


def test_the_page_lists_what_is_refused() -> None:
    assert refused() in (Path(__file__).parents[3] / "docs" / "pytorch.md").read_text()


def random_row(key: str, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int = 0) -> tuple[Any, Any]:
    """What a row draws with a seed, and what PyTorch does."""
    expected = rows.as_list(rows.torch_operator(key)(*args, **kwargs))
    made, env = rows.build(key, args, kwargs, expected, seed)
    return rows.evaluated(made, env)[0], expected[0]


@pytest.mark.parametrize("key", sorted(RANDOM))
def test_random_row(key: str) -> None:
    args, kwargs, mean, variance = RANDOM[key]
    found, expected = random_row(key, args, kwargs)
    assert found.shape == tuple(expected.shape)
    assert found.dtype == expected.numpy().dtype
    assert np.isfinite(found).all()
    if mean is not None and variance is not None:
        assert abs(found.mean() - mean) < 5 * math.sqrt(variance / N)
        assert 0.85 * variance < found.var() < 1.15 * variance
    else:
        assert abs(np.median(found)) < 0.1
    np.testing.assert_array_equal(found, random_row(key, args, kwargs)[0])
    assert (found != random_row(key, args, kwargs, seed=1)[0]).any()
    assert draws_of(key.partition(".")[0], args, kwargs) == 1


def test_multinomial_without_replacement_takes_each_once() -> None:
    weights = torch.tensor([[1.0, 2.0, 0.0, 5.0], [3.0, 1.0, 1.0, 1.0]])
    found, _ = random_row("multinomial.default", (weights, 3), {})
    assert [len(set(row)) for row in found.tolist()] == [3, 3]
    assert 2 not in found[0].tolist()


@pytest.mark.parametrize("key", sorted(DROPOUT))
def test_dropout_scales_what_it_keeps(key: str) -> None:
    x, p = torch.ones(16, 16, 4, dtype=torch.float64), DROPOUT[key]
    found, _ = random_row(key, (x, p, True), {})
    values, counts = np.unique(found, return_counts=True)
    np.testing.assert_allclose(values, [0, 1 / (1 - p)])
    assert abs(counts[0] / found.size - p) < 0.1
    if key.startswith("feature"):  # whole channels
        assert (found == found[:, :, :1]).all()
    assert draws_of(key.partition(".")[0], (x, p, True), {}) == 1


@pytest.mark.parametrize("key", ["alpha_dropout.default", "feature_alpha_dropout.default"])
def test_alpha_dropout_keeps_mean_and_variance(key: str) -> None:
    x = torch.tensor(np.random.default_rng(0).normal(size=(64, 64, 2)))
    found, _ = random_row(key, (x, 0.3, True), {})
    assert abs(found.mean()) < 0.1
    assert abs(found.var() - 1) < 0.2


def test_slopes_of_rrelu_are_between_its_bounds() -> None:
    found, _ = random_row("rrelu.default", (-torch.ones(N, dtype=torch.float64), 0.1, 0.5, True), {})
    assert -0.5 <= found.min() < -0.45
    assert -0.15 < found.max() <= -0.1
    assert draws_of("rrelu", (None, 0.1, 0.5, True), {}) == 1
    assert draws_of("rrelu", (None,), {}) == 0


@pytest.mark.parametrize("key", sorted(EMPTY))
def test_open_elements_are_zeros(key: str) -> None:
    found, expected = random_row(key, EMPTY[key], {})
    assert found.shape == tuple(expected.shape)
    assert not found.any()


@pytest.mark.parametrize("key", sorted(OTHERS))
def test_eigenvectors(key: str) -> None:
    a = f(2, 4, 4)
    expected = torch.linalg.eigh(a, UPLO="L")
    made, env = rows.build(key, (a,), {}, list(expected))
    values, vectors = rows.evaluated(made, env)
    np.testing.assert_allclose(values, expected[0].numpy(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(abs(vectors), abs(expected[1].numpy()), rtol=1e-8, atol=1e-8)


def test_masks_that_are_constants_are_indices() -> None:
    from gluongraph import ops
    from gluongraph.ir.graph import TensorType

    x, mask = f(3, 2), t([True, False, True])
    leaf = ops.input("x", TensorType((3, 2), "f64"))
    at: Any = rows.OpContext(None, "index.Tensor", ["f64"])  # type: ignore[arg-type]
    made = TABLE["aten.index.Tensor"](at, leaf, [ops.literal(mask.numpy())])
    np.testing.assert_array_equal(rows.evaluated([made], {leaf: x.numpy()})[0], x[mask].numpy())
    with pytest.raises(UnsupportedError, match="a mask depend on data"):
        TABLE["aten.index.Tensor"](at, leaf, [ops.input("m", TensorType((3,), "bool"))])
    assert b(3).dtype == torch.bool


@pytest.mark.parametrize(
    "key", sorted(k for k in TABLE if k.split(".")[0] in ("_operator", "builtins", "math", "torch"))
)
def test_arithmetic_on_sizes(key: str) -> None:
    library, name = key.split(".")
    if library == "torch":
        expected = getattr(torch, name)
        args = {"sym_ite": (True, 3, 4), "sym_not": (False,), "sym_sqrt": (9,)}.get(name, (7, 2))
    else:
        expected = getattr(__import__(library), name)
        args = {"getitem": ((4, 5), 1), "not_": (False,), "neg": (3,)}.get(name, (7, 2))
    if name in ("ceil", "floor", "trunc", "round", "int", "float", "sym_int", "sym_float"):
        args = (2.5,)
    assert TABLE[key](None, *args) == expected(*args)
