"""What operators of symbol files say is meant or refused: held against the table of all of MXNet 1.9.1's operators."""

from __future__ import annotations

import ast
import inspect
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from gluongraph import nd
from gluongraph.errors import MXNetError
from gluongraph.symbol import operators

TABLE: dict[str, tuple[list[str], dict[str, str | None]]] = json.loads(
    pathlib.Path(__file__).with_name("operators_of_mxnet.json").read_text()
)
# MXNet's default and what it stands for: the default here
SAME = {
    ("Pooling", "count_include_pad"): True,
    **{(f"_contrib_{kind}DeformableConvolution", name): value for kind in ("", "Modulated") for name, value in (
        ("stride", (1, 1)), ("dilate", (1, 1)), ("pad", (0, 0)),
    )},
    **{(f"{kind}multi_{mp}sgd_{mom}update", "num_weights"): 0  # as many as there are arrays for
       for kind in ("", "preloaded_") for mp in ("", "mp_") for mom in ("", "mom_")},
    ("_random_randint", "dtype"): "int32",
    ("_image_normalize", "mean"): 0.0,  # of all channels
    ("_image_normalize", "std"): 1.0,
}  # fmt: skip
# MXNet's name of an array, and the one here; they are given by place
ARRAYS = {"lhs": ("base", "indices"), "rhs": ("exp", "value", "out"), "data": ("a",)}


def accepted() -> list[str]:
    found = []
    for op in TABLE:
        try:
            operators.function(op)
        except NotImplementedError:
            continue
        found.append(op)
    return found


def meaning(text: str) -> Any:
    text = text.strip("'")
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text or None
    return tuple(found) or None if isinstance(found, list) else found


def equal(theirs: Any, ours: Any) -> bool:
    ours = None if ours == () else ours
    if isinstance(theirs, float | int) and isinstance(ours, float | int):
        return abs(theirs - ours) <= 2e-7 * abs(theirs)  # MXNet prints float32
    return bool(theirs == ours)


def test_there_are_many() -> None:
    assert len(accepted()) > 300


@pytest.mark.parametrize("op", accepted())
def test_attributes_are_taken_with_mxnets_default_or_refused(op: str) -> None:
    """An attribute that a file does not mention is what MXNet's default says; one that is not known is refused."""
    _, attributes = TABLE[op]
    known = operators.keywords(op)
    for name, default in attributes.items():
        if name in operators._IGNORED or name in operators._IGNORED_OF.get(op, ()):
            continue
        if known is not None and name not in known:
            assert default is None or name in operators._FIXED.get(op, {}), f"{op}: {name} may be its default"
            if default is not None:
                assert equal(meaning(default), operators._FIXED[op][name]), f"{op}: {name} of _FIXED"
            for value in ("True", "False", "7", "(3, 4)", "None", "text"):
                if name in operators._FIXED.get(op, {}) and operators.value(value) == operators._FIXED[op][name]:
                    continue
                with pytest.raises(MXNetError, match=name):
                    operators.apply(op, "node", {name: value}, [])
        elif known is not None and default is not None:
            ours = operators._DEFAULTS.get(op, {}).get(name, known[name])
            if ours is inspect.Parameter.empty:  # must be said here
                continue
            what = f"{op}: {name} is {ours!r} if a file does not say it, in MXNet {default}"
            assert equal(SAME.get((op, name), meaning(default)), ours), what


@pytest.mark.parametrize("op", accepted())
def test_arrays_come_in_mxnets_order(op: str) -> None:
    arrays, _ = TABLE[op]
    parameters = list(inspect.signature(operators.function(op)).parameters.values())
    if any(p.kind is p.VAR_POSITIONAL for p in parameters) or op == "_NDArray":
        return
    for theirs, ours in zip(arrays, parameters, strict=False):
        assert ours.name in (theirs, *ARRAYS.get(theirs, ())), f"{op}: {arrays}, {[p.name for p in parameters]}"


def test_what_is_said_of_operators_is_said_of_mxnets() -> None:
    for table in (operators._IGNORED_OF, operators._FIXED, operators._DEFAULTS):
        for op, names in table.items():
            assert set(names) <= set(TABLE[op][1]), op
    assert set(operators._SPECIAL) <= set(TABLE)


@pytest.mark.parametrize("op", [op for op in accepted() if operators.keywords(op) is None])
def test_what_optimizers_are_not_asked_for_is_refused(op: str) -> None:
    several = "multi" in op
    count = 2 + ("mom" in op) + ("mp" in op) + 2 * ("preloaded" in op) if several else len(TABLE[op][0])
    arrays = [nd.ones((1,)) for _ in range(count)]
    rates = {"lrs": "(0.1,)", "wds": "(0.0,)"} if "preloaded" not in op else {}
    with pytest.raises((TypeError, MXNetError), match="nonsense"):
        operators.apply(op, "node", {**(rates if several else {"lr": "0.1"}), "nonsense": "3"}, arrays)


def run(op: str, *arrays: Any, **attrs: Any) -> list[Any]:
    made = operators.apply(op, "node", {k: str(v) for k, v in attrs.items()}, [nd.array(a) for a in arrays])
    return [m.asnumpy() for m in made]


def test_a_default_that_is_true_can_be_said_to_be_false() -> None:
    a = np.array([[4.0, 2.0], [2.0, 3.0]], np.float32)
    lower, upper = run("_linalg_potrf", a)[0], run("_linalg_potrf", a, lower=False)[0]
    np.testing.assert_allclose(lower, np.linalg.cholesky(a), rtol=1e-6)
    np.testing.assert_allclose(upper, np.linalg.cholesky(a).T, rtol=1e-6)


def test_operators_with_other_names_and_attributes_than_functions() -> None:
    """Numbers of MXNet 1.9.1."""
    counts, edges = run("_histogram", [1, 2, 5, 2.5], bin_cnt=3, range=(0, 3))
    assert counts.tolist() == [0, 1, 2] and edges.tolist() == [0, 1, 2, 3]
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert [p.shape for p in run("_split_v2", x, indices=(0, 1))] == [(3, 1), (3, 3)], "axis 1 is the default"
    assert [p.tolist() for p in run("_split_v2", x, indices=(0, 2), axis=0)] == [x[:2].tolist(), x[2:].tolist()]
    assert [p.shape for p in run("_split_v2", x, indices=(), sections=2)] == [(3, 2), (3, 2)]
    assert [p.shape for p in run("_split_v2", x, indices=(1, 2))] == [(3, 1), (3, 2)], "parts begin there"
    assert run("_hypot", [3.0], [4.0])[0] == 5 and run("_hypot_scalar", [3.0], scalar=4.0)[0] == 5
    assert run("_PlusScalar", [3.0], scalar=4.0)[0] == 7 and run("_RMinusScalar", [3.0], scalar=4.0)[0] == 1
    assert run("_contrib_allclose", [np.nan], [np.nan])[0] == 1
    cut = {"begin": (1,), "end": (3,)}
    assert run("_slice_assign", x[0], [7.0, 8.0], **cut, step=(1,))[0].tolist() == [0, 7, 8, 3]
    assert run("_slice_assign_scalar", x[0], **cut, scalar=5.0)[0].tolist() == [0, 5, 5, 3]
    with pytest.raises(MXNetError, match="step 1 only"):
        run("_slice_assign", x[0], [7.0], **cut, step=(2,))
    drawn = run("_random_uniform", low=2.0, high=3.0, shape=(100,), ctx="cpu(0)", dtype="None")[0]
    assert drawn.shape == (100,) and drawn.min() >= 2 and drawn.max() < 3
    assert abs(run("_random_exponential", lam=4.0, shape=(10000,), ctx="gpu(0)")[0].mean() - 0.25) < 0.02
    assert run("_rnn_param_concat", x, x)[0].shape == (3, 8)


def test_whole_numbers_with_a_scalar_that_is_not_whole() -> None:
    x = np.array([1, 2, 3], np.int32)
    attrs = {"scalar": "1.5", "is_int": "False"}
    (made,) = operators.apply("_plus_scalar", "node", attrs, [nd.array(x, dtype="int32")])
    assert made.dtype == np.float64 and made.asnumpy().tolist() == [2.5, 3.5, 4.5]


def test_operators_on_images() -> None:
    image = np.random.default_rng(0).integers(0, 255, (4, 5, 3)).astype(np.uint8)
    (tensor,) = operators.apply("_image_to_tensor", "node", {}, [nd.array(image, dtype="uint8")])
    np.testing.assert_allclose(tensor.asnumpy(), image.transpose(2, 0, 1) / 255.0, rtol=1e-6)
    made = run("_image_normalize", tensor.asnumpy(), mean=(0.5, 0.5, 0.5), std=(2.0, 2.0, 2.0))[0]
    np.testing.assert_allclose(made, (tensor.asnumpy() - 0.5) / 2, rtol=1e-5)
    assert run("_image_crop", image, x=1, y=0, width=2, height=3)[0].shape == (3, 2, 3)
    assert run("_image_resize", image, size=(2, 3))[0].shape == (3, 2, 3)


@pytest.mark.parametrize("op", ["BatchNorm", "LayerNorm", "GroupNorm"])
def test_mean_and_deviation_as_further_outputs(op: str) -> None:
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    width = {"BatchNorm": 4, "LayerNorm": 3, "GroupNorm": 1}[op]
    arrays = [x, np.ones(width, np.float32), np.zeros(width, np.float32)]
    arrays += [np.zeros(width, np.float32), np.ones(width, np.float32)] if op == "BatchNorm" else []
    assert len(run(op, *arrays)) == 1 and len(run(op, *arrays, output_mean_var=True)) == 3
