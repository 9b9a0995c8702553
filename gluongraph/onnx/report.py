"""Which operators there are, measured by ONNX's own backend tests: `python -m gluongraph.onnx.report --help`.

Each test is a small model with inputs and the outputs that it must give. It is loaded by `gluongraph.onnx.load` and
run as a user would run it. Inputs that decide shapes are fixed to their numbers, as `load(..., fixed=...)` does. What
cannot be done must be refused by a message; a wrong number is a failure of its own kind.

A result in float32 that is further from the stored one than the test allows is held against the same model in float64,
and against how far that moves when every parameter moves by a rounding error of float32: a softmax of huge numbers that
should be equal says something else with every order of summation, so with every BLAS.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import pkgutil
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gluongraph import autograd, nd
from gluongraph.dtypes import dtype_name, is_float
from gluongraph.errors import MXNetError
from gluongraph.host import services
from gluongraph.onnx.block import ONNXBlock, load
from gluongraph.onnx.format.model import DEFAULT, TRAINING
from gluongraph.onnx.format.package import OLDEST, onnx
from gluongraph.onnx.operators import rows
from gluongraph.onnx.operators.node_context import UnknownNumbersError
from gluongraph.onnx.operators.table import Row
from gluongraph.storage import Array

NODE = "backend.test.case.node"
# The least relative error that an element type can hold two results to: two units in the last place.
ROUNDING = {"bf16": 2.0**-6, "f16": 2.0**-9}
# Results of these are random numbers: their types are compared, and no more.
RANDOM = frozenset({"Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})

PASSED, RANDOMLY, REFUSED, WRONG = "passed", "random", "refused", "wrong"


@dataclass(frozen=True)
class Case:
    """One of ONNX's tests."""

    name: str
    model: Any
    data: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators of the model, in order."""
        return tuple(
            dict.fromkeys(f"{n.domain}::{n.op_type}" if n.domain else n.op_type for n in self.model.graph.node)
        )

    @property
    def counts(self) -> bool:
        """Is it of the default domain, with arrays as inputs and outputs?"""
        domains = {n.domain for n in self.model.graph.node} - {DEFAULT, "ai.onnx", TRAINING}
        values = (*self.model.graph.input, *self.model.graph.output)
        return not domains and all(v.type.HasField("tensor_type") for v in values)


@dataclass(frozen=True)
class Outcome:
    """What became of a test, and why if it has not passed."""

    case: Case
    kind: str
    why: str = ""


def cases(modules: Iterable[str] | None = None) -> list[Case]:
    """The node tests of the installed package; of some of its modules ("conv", "gemm"), which is faster than all."""
    package = onnx(NODE)
    names = [m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg] if modules is None else modules
    found: list[Case] = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the package divides by zero while it makes its tests
        for name in names:
            importlib.import_module(f"{package.__name__}.{name}")
    wanted = {name.replace("_", "") for name in names}
    for test in package._NodeTestCases:
        if modules is None or any(test.name.replace("_", "").startswith(f"test{w}") for w in wanted):
            found.append(Case(test.name, test.model, test.data_sets, test.rtol, test.atol))
    return sorted(found, key=lambda c: c.name)


def stored(kind: str) -> Iterator[Case]:
    """The tests that lie in the package as files: simple, pytorch-operator, pytorch-converted."""
    proto, arrays = onnx(), onnx("numpy_helper")
    folder = Path(proto.__file__).parent / "backend" / "test" / "data" / kind
    for model in sorted(folder.glob("*/model.onnx")):
        data: list[tuple[list[Any], list[Any]]] = []
        for each in sorted(model.parent.glob("test_data_set_*")):
            files = [sorted(each.glob(f"{part}_*.pb"), key=_number) for part in ("input", "output")]
            tensors = [[proto.TensorProto.FromString(f.read_bytes()) for f in part] for part in files]
            given, wanted = ([arrays.to_array(t) for t in part] for part in tensors)
            data.append((given, wanted))
        yield Case(model.parent.name, proto.load(model), data, 1e-3, 1e-7)


def light() -> Iterator[Case]:
    """The light models of the package: networks for images, all of whose weights are one number."""
    proto, arrays = onnx(), onnx("numpy_helper")
    folder = Path(proto.__file__).parent / "backend" / "test" / "data" / "light"
    for file in sorted(folder.glob("*.onnx")):
        model = proto.load(file)
        inner = {v.name for v in model.graph.initializer}
        free = [v.type.tensor_type.shape.dim for v in model.graph.input if v.name not in inner]
        shapes = [[d.dim_value or 1 for d in dims] for dims in free]
        given = [(np.arange(math.prod(s)).reshape(s) / math.prod(s)).astype(np.float32) for s in shapes]
        results = sorted(folder.glob(f"{file.stem}_output_*.pb"), key=_number)
        wanted = [arrays.to_array(proto.TensorProto.FromString(f.read_bytes())) for f in results]
        yield Case(file.stem, model, [(given, wanted)], 1e-3, 1e-7)


def _number(file: Path) -> int:
    return int(file.stem.rpartition("_")[2])


def arrays_of(values: Sequence[Any]) -> list[Any]:
    """The arrays of a test, some of which are still as in files; lists stay lists, which no block takes."""
    proto, helper = onnx().TensorProto, onnx("numpy_helper")
    plain = [helper.to_array(v) if isinstance(v, proto) else v for v in values]
    return [v if v is None or isinstance(v, list) else np.asarray(v) for v in plain]


def run(case: Case, compiled: bool = False) -> Outcome:
    """Load the model of a test, run it, eagerly or compiled, and compare."""
    try:
        random = [_compare(case, arrays_of(given), arrays_of(expected), compiled) for given, expected in case.data]
    except (MXNetError, FileNotFoundError) as error:
        return Outcome(case, REFUSED, str(error).split("\n")[0])
    except AssertionError as error:
        return Outcome(case, WRONG, " ".join(str(error).split()))
    return Outcome(case, RANDOMLY if any(random) else PASSED)


def _compare(case: Case, given: Sequence[Any], expected: Sequence[Any], compiled: bool) -> bool:
    """True if the results differ because they are random numbers."""
    inner = {v.name for v in case.model.graph.initializer}
    names = [v.name for v in case.model.graph.input if v.name not in inner]
    training = case.name.startswith("test_training_") or "training_mode" in case.name
    net, results = outputs(case.model, dict(zip(names, given, strict=True)), training, compiled)
    assert len(results) == len(expected), f"{len(results)} outputs instead of {len(expected)}"
    drawn = net.draws(training) > 0 or bool(RANDOM & set(case.operators))
    for i, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        assert result.dtype == wanted.dtype, f"{result.dtype} instead of {wanted.dtype}"
        assert result.shape == wanted.shape, f"shape {result.shape} instead of {wanted.shape}"
        if drawn and not np.array_equal(result, wanted):
            return True
        try:
            _close(result, wanted, case)
        except AssertionError:
            if wanted.dtype != np.float32 or training:
                raise
            exact, moved = own_error(case.model, dict(zip(names, given, strict=True)), i)
            for each in (result, wanted):
                _close(each.astype(np.float64), exact, case, OWN_ERRORS * moved)
    return False


def _close(result: Array, wanted: Array, case: Case, more: float = 0.0) -> None:
    """Raise AssertionError unless the test allows the difference, and `more` in absolute terms."""
    dtype = dtype_name(wanted.dtype)
    if not is_float(dtype):
        np.testing.assert_array_equal(result, wanted)
        return
    rtol = max(case.rtol, ROUNDING.get(dtype, 0.0))
    np.testing.assert_allclose(result.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=case.atol + more)


OWN_ERRORS, DRAWS = 4, 3


def own_error(model: Any, given: dict[str, Array], output: int) -> tuple[Array, float]:
    """A result of a model in float64; and the most that it moves when each weight moves by half a unit in the last
    place of float32, up or down, drawn a few times."""
    net, _ = outputs(_with_weights(model), given, training=False, compiled=False)
    net.cast("float64")
    arrays = [given[value.name] for value in net.declared]
    args = [nd.array(a, dtype="float64" if is_float(dtype_name(a.dtype)) else a.dtype) for a in arrays]

    def result() -> Array:
        made = _run(net, args, training=False, compiled=False)
        found: Array = (made[output] if isinstance(made, list | tuple) else made).asnumpy()
        return found

    exact, chance, moved = result(), np.random.default_rng(0), 0.0
    weights = {p: p.data().asnumpy() for p in net.collect_params().values()}
    for _ in range(DRAWS):
        for p, values in weights.items():
            p.set_data(nd.array(values * (1 + chance.choice([-1.0, 1.0], values.shape) * 2.0**-24), dtype="float64"))
        moved = max(moved, float(np.max(np.abs(result() - exact), initial=0.0)))
    return exact, moved


def _with_weights(model: Any) -> Any:
    """A model whose arrays of one number, which the light models have for weights, are stored as weights are."""
    copy, helper = type(model).FromString(model.SerializeToString()), onnx("numpy_helper")
    stored = {t.name: t for t in copy.graph.initializer}
    for node in list(copy.graph.node):
        if node.op_type == "ConstantOfShape" and node.input[0] in stored:
            fill = next((helper.to_array(a.t) for a in node.attribute if a.name == "value"), np.zeros(1, np.float32))
            array = np.full(helper.to_array(stored[node.input[0]]), fill.item(), fill.dtype)
            copy.graph.initializer.append(helper.from_array(array, node.output[0]))
            copy.graph.node.remove(node)
    return copy


def outputs(model: Any, given: dict[str, Array], training: bool, compiled: bool) -> tuple[ONNXBlock, list[Array]]:
    """The block and its results, eagerly or by mx.compile(net).predict; inputs that decide shapes are fixed.

    So are inputs without elements, which no compiled call takes.
    """
    fixed = {name: a for name, a in given.items() if isinstance(a, np.ndarray) and not a.size}
    while True:
        net = load(model.SerializeToString(), fixed=fixed)
        args = [nd.array(a, dtype=a.dtype) for name, a in given.items() if name not in fixed]
        try:
            made = _run(net, args, training, compiled)
            return net, [a.asnumpy() for a in (made if isinstance(made, list | tuple) else [made])]
        except UnknownNumbersError:
            deciding = {name: given[name] for name in net.deciding}
            if not deciding:
                raise
            fixed |= deciding


def _run(net: ONNXBlock, args: list[Any], training: bool, compiled: bool) -> Any:
    if compiled and args and not training:
        return services.get("compile")(net).predict(*args)
    net.hybridize(compiled)
    with autograd.train_mode() if training else autograd.predict_mode():
        return net(*args)


# -- the command


def table(outcomes: Iterable[Outcome]) -> dict[str, Counter[str]]:
    """For each operator how its tests went; a test of several operators counts for its first."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for each in outcomes:
        found[each.case.operators[0] if each.case.operators else ""][each.kind] += 1
    return dict(sorted(found.items()))


def listing() -> str:
    """The table of operators as Markdown: name, versions from which a row holds, inputs that must be known."""
    by_name: dict[str, list[Row]] = defaultdict(list)
    for row in rows():
        by_name[f"{row.domain}::{row.name}" if row.domain else row.name].append(row)
    lines = ["| operator | from opset | inputs known ahead |", "|---|---|---|"]
    for name, found in by_name.items():
        versions = ", ".join(str(max(r.since, OLDEST)) if not r.domain else str(r.since) for r in found)
        known = ", ".join(found[-1].static)
        lines.append(f"| {name} | {versions} | {known} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 if a test gave wrong numbers, else 0."""
    parser = argparse.ArgumentParser(prog="python -m gluongraph.onnx.report", description=__doc__)
    parser.add_argument("--compiled", action="store_true", help="compile each test: minutes instead of seconds")
    parser.add_argument("--operators", action="store_true", help="list the operators and their versions, and no more")
    parser.add_argument("--match", default="", help="a regular expression that names of tests must contain")
    parser.add_argument("--stored", action="store_true", help="the models that lie in the package as files, too")
    parser.add_argument("--why", action="store_true", help="say of each test that has not passed why")
    parser.add_argument("--json", action="store_true", help="for machines")
    given = parser.parse_args(argv)
    if given.operators:
        print(listing())
        return 0
    found = cases()
    if given.stored:
        found += [c for kind in ("simple", "pytorch-operator", "pytorch-converted") for c in stored(kind)]
        found += light()
    outcomes = [run(c, given.compiled) for c in found if re.search(given.match, c.name)]
    counted = Counter(o.kind for o in outcomes if o.case.counts)
    if given.json:
        listed = [{"name": o.case.name, "operators": o.case.operators, "kind": o.kind, "why": o.why} for o in outcomes]
        print(json.dumps(listed, indent=1))
    else:
        for name, counts in table(outcomes).items():
            print(f"{name:<28}" + "  ".join(f"{kind} {count}" for kind, count in sorted(counts.items())))
        for each in outcomes:
            if given.why and each.why:
                print(f"{each.kind} {each.case.name}: {each.why}")
        total = sum(counted.values())
        share = 100 * counted[PASSED] / max(total, 1)
        print(f"{counted[PASSED]} of {total} tests of the default domain pass ({share:.1f} %); {dict(counted)}")
    return int(any(o.kind == WRONG for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
