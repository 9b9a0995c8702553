"""Files and arguments that no program of ours writes: refused in one sentence, whatever they are."""

from __future__ import annotations

import ast
import json
import pathlib
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.errors import DTypeError, FormatError
from gluongraph.gluon import nn
from gluongraph.host import json_text, params_file
from gluongraph.host.json_text import DEEPEST
from gluongraph.ir import serialize
from gluongraph.nd import files
from gluongraph.optimizer.updater import get_updater
from gluongraph.runtime import tensorfile

ROOT = pathlib.Path(__file__).parent.parent


# -- JSON that is nested deeply

LEVELS = [DEEPEST, 900, 100_000]  # as deep as Python's reader goes and deeper, each of which has gone wrong elsewhere


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def safetensors(path: pathlib.Path, header: str, elements: bytes = b"") -> pathlib.Path:
    data = header.encode() + b" " * (-len(header.encode()) % 8)
    path.write_bytes(len(data).to_bytes(8, "little") + data + elements)
    return path


def trainer() -> gluon.Trainer:
    net = nn.Dense(2, in_units=2, prefix="dense_")
    net.initialize()
    return gluon.Trainer(net.collect_params(), "adam")


def load_states(path: pathlib.Path, text: str) -> None:
    """States of a trainer whose description is this text."""
    ours = trainer()
    safetensors(path, json.dumps({"__metadata__": {"trainer": text}}))
    before = ours.optimizer.progress()
    try:
        ours.load_states(str(path))
    finally:
        assert ours.optimizer.progress() == before


READERS: dict[str, Callable[[pathlib.Path, str], object]] = {
    "safetensors": lambda path, text: tensorfile.parse(
        np.fromfile(safetensors(path, f'{{"x": {text}}}'), np.uint8), "the file"
    ),
    "metadata": lambda path, text: files.read(str(safetensors(path, f'{{"__metadata__": {{"x": {text}}}}}'))),
    "nd.load": lambda path, text: nd.load(str(safetensors(path, f'{{"x": {text}}}'))),
    "parameters": lambda path, text: nn.Dense(2).load_parameters(str(safetensors(path, f'{{"x": {text}}}'))),
    "artefact": lambda path, text: mx.load(safetensors(path, f'{{"x": {text}}}')),
    "symbol": lambda path, text: mx.sym.load_json(f'{{"nodes": {text}}}'),
    "graph": lambda path, text: serialize.loads(f'{{"graphs": {text}}}'),
    "trainer": lambda path, text: load_states(path, text),
    "updater": lambda path, text: get_updater(mx.optimizer.Adam()).set_states(
        safetensors(path, json.dumps({"__metadata__": {"updater": text}})).read_bytes()
    ),
}


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("name", READERS)
def test_json_that_is_nested_deeply(name: str, levels: int, tmp_path: pathlib.Path) -> None:
    with pytest.raises(FormatError) as caught:
        READERS[name](tmp_path / "file", nested(levels))
    assert len(str(caught.value)) < 600


def test_json_is_read_in_one_place() -> None:
    """Others would have to think of its depth; what stands behind a digest of ours is excepted, what peers say,
    and what processes of one job tell each other."""
    own = {"json_text.py", "store.py", "selections.py", "measurements.py", "plans.py", "augment.py"}
    own |= {"launcher_rank.py", "launcher_server.py", "torchrun.py", "nccl.py", "elastic.py", "simulate_calibration.py"}
    wrong = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for folder in ("gluongraph", "passes", "codegen", "runtime")
        for file in (ROOT / folder).rglob("*.py")
        if file.name not in own and "bench" not in file.parts
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("json.loads", "json.load")
    ]
    assert not wrong


def test_how_deep_is_allowed() -> None:
    assert json_text.parse(nested(DEEPEST)) == json.loads(nested(DEEPEST))
    with pytest.raises(ValueError, match=r"^it is nested too deeply$"):
        json_text.parse(nested(DEEPEST + 1))
    endless: dict[str, Any] = {}
    endless["x"] = endless
    assert json_text.depth_exceeds(endless, 3) and not json_text.depth_exceeds("text", 0)


@pytest.mark.parametrize("text", ["(" * 5000, "-" * 100_000 + "1", "[" * 150 + "]" * 150, "1" * 5000])
def test_attributes_of_symbols_that_no_parser_takes(text: str) -> None:
    symbol = mx.sym.load_json(
        json.dumps(
            {
                "nodes": [
                    {"op": "null", "name": "x", "inputs": []},
                    {"op": "sum", "name": "y", "attrs": {"axis": text}, "inputs": [[0, 0, 0]]},
                ],
                "heads": [[1, 0, 0]],
            }
        )
    )
    with pytest.raises((FormatError, mx.MXNetError, TypeError, ValueError)):
        gluon.SymbolBlock(symbol, mx.sym.var("x"))(nd.ones((2, 2)))


# -- MXNet's files of arrays


def dense(shape: tuple[int, ...], letter: str = "q") -> bytes:
    head = struct.pack("<Ii", params_file.V2, params_file.DENSE)
    return head + struct.pack(f"<I{len(shape)}{letter}", len(shape), *shape) + struct.pack("<iii", 1, 0, 0)


def sparse(kind: int, stored: tuple[int, ...], shape: tuple[int, ...], *others: np.ndarray[Any, Any]) -> bytes:
    """Row sparse or CSR: the shapes, then types and shapes of numbers, then values (ones) and numbers."""
    made = struct.pack("<Ii", params_file.V2, kind)
    for each in (stored, shape):
        made += struct.pack(f"<I{len(each)}q", len(each), *each)
    made += struct.pack("<iii", 1, 0, 0)
    for each in others:
        made += struct.pack(f"<iI{each.ndim}q", 6, each.ndim, *each.shape)
    return made + np.ones(stored, np.float32).tobytes() + b"".join(each.tobytes() for each in others)


def numbers(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


ARRAYS = {
    "negative": dense((-1, 4)),
    "negative twice": dense((-1, -4)) + bytes(16),
    "absurd": dense((2**40, 2**40)),
    "more than 64 bits": dense((2**62, 4)),
    "absurd, of nothing": dense((0, 2**62, 2**62)),
    "many axes": struct.pack("<IiI", params_file.V2, params_file.DENSE, 2**31),
    "old": struct.pack("<IIqqiii", params_file.V1, 2, -1, -4, 1, 0, 0) + bytes(16),
    "oldest": struct.pack("<IIIiii", 2, 2**32 - 1, 2**32 - 1, 1, 0, 0),
    "sparse, absurd": sparse(1, (1, 4), (2**50, 4), numbers(0)),
    "sparse, large": sparse(1, (1, 4), (2**44, 4), numbers(0)),
    "sparse, negative": sparse(1, (1, 4), (-3, 4), numbers(0)),
    "a row that is not there": sparse(1, (1, 4), (3, 4), numbers(7)),
    "rows of another length": sparse(1, (1, 5), (3, 4), numbers(1)),
    "CSR that runs backwards": sparse(2, (2,), (2, 4), numbers(0, 2, 1), numbers(0, 1)),
    "CSR without axes": sparse(2, (2,), (), numbers(0, 2), numbers(0, 1)),
    "CSR, a column that is not there": sparse(2, (1,), (1, 4), numbers(0, 1), numbers(9)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_shapes_that_no_array_has(name: str, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "x.params"
    file.write_bytes(struct.pack("<QQQ", params_file.FILE, 0, 1) + ARRAYS[name] + struct.pack("<Q", 0))
    with pytest.raises(FormatError, match=r"x\.params") as caught:
        nd.load(str(file))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "tail", [struct.pack("<QQ", 1, 2) + b"\xff\xfe", struct.pack("<QQ", 1, 2**63), struct.pack("<Q", 2**63)]
)
def test_names_that_are_none(tail: bytes, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "x.params"
    file.write_bytes(struct.pack("<QQQ", params_file.FILE, 0, 0) + tail)
    with pytest.raises(FormatError, match=r"x\.params"):
        nd.load(str(file))


def test_every_cut_and_every_byte(tmp_path: pathlib.Path) -> None:
    """Cut anywhere, or any byte changed, a small file is read or refused, and nothing else."""
    file = tmp_path / "x.params"
    nd.save(str(file), {"x": nd.ones((2, 3)), "y": nd.arange(3)})
    data, refused = file.read_bytes(), 0
    for at in range(len(data)):
        for changed in (
            data[:at],
            *(data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :] for bits in (1, 0x80, 0xFF)),
        ):
            try:
                params_file.parse(changed, "x.params")
            except FormatError:
                refused += 1
    assert refused > 2 * len(data)


# -- tensors that do not come out of their library


class Elsewhere:
    """Refuses as PyTorch's tensors do that require gradients, or lie on a GPU."""

    requires_grad, dtype = True, "float32"

    def __init__(self, error: type[Exception]):
        self.error = error

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise self.error("Can't call numpy() on Tensor that\nrequires grad.")


def tensors() -> list[Any]:
    found: list[Any] = [Elsewhere(RuntimeError), Elsewhere(TypeError), [Elsewhere(RuntimeError)]]
    try:
        import torch
    except ImportError:
        return found
    return [
        *found,
        torch.ones(2, requires_grad=True),
        [torch.ones(2, requires_grad=True)],
        torch.ones(2, device="meta"),
    ]


def assign(x: Any) -> None:
    nd.zeros((2,))[:] = x


TAKERS: dict[str, Callable[[Any], object]] = {
    "nd.array": nd.array,
    "from_numpy": nd.from_numpy,
    "assign": assign,
    "index": lambda x: nd.zeros((2,))[x],
    "constant": lambda x: gluon.Constant("c", x),
    "metric": lambda x: mx.metric.MSE().update([x], [nd.ones((2,))]),
    "step": lambda x: mx.compile(lambda a: a).predict(x),
}


@pytest.mark.parametrize("name", TAKERS)
def test_tensors_that_do_not_come_out_of_their_library(name: str) -> None:
    for given in tensors():
        if isinstance(given, list) and name in ("from_numpy", "metric", "index", "step"):
            continue
        with pytest.raises(
            DTypeError, match=r"cannot be had: \S.*\n  at .*test_hostile_input.py.*\n  help: .*detach\(\)"
        ):
            TAKERS[name](given)
