"""Models with something wrong in them: read, or refused by one sentence; nothing crashes, hangs or takes all memory."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import BASES, MUTATIONS, Chance
from onnx import helper

import gluongraph as mx
from gluongraph import nd
from gluongraph.errors import FormatError, MXNetError, UnsupportedError
from gluongraph.onnx.operators import rows
from gluongraph.onnx.operators.table import KINDS

LONGEST = 600  # characters of a sentence


def changed(base: str, names: list[str], seed: int) -> bytes:
    """A model with some mutations, one after the other."""
    proto, chance = BASES[base][0](), random.Random(seed)
    for name in names:
        MUTATIONS[name](proto, chance)
    data: bytes = proto.SerializeToString()
    return data


def attempt(data: bytes, shape: tuple[int, ...]) -> str:
    """Load a model and call it; the message, if it is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of numbers that a mutation has made infinite
        try:
            net = mx.onnx.load(data)
            net(*(nd.ones(shape) for _ in net.inputs))
        except MXNetError as error:
            message = str(error).split("\n")[0]
            assert 0 < len(message) < LONGEST, message
            return message
    return ""


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.sampled_from(sorted(BASES)),
    st.lists(st.sampled_from(sorted(MUTATIONS)), min_size=1, max_size=3),
    st.integers(0, 1 << 32),
)
def test_models_with_something_wrong(base: str, names: list[str], seed: int) -> None:
    try:
        data = changed(base, names, seed)
    except (IndexError, ValueError):  # there is nothing left that this mutation could change
        return
    attempt(data, BASES[base][1])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(BASES)), st.integers(0, 1 << 32), st.integers(1, 4), st.integers(0, 40))
def test_bytes_that_are_wrong(base: str, seed: int, edits: int, lost: int) -> None:
    """Some bytes of the file are others, and some at its end are missing."""
    data, chance = bytearray(BASES[base][0]().SerializeToString()), Chance(seed)
    for _ in range(edits):
        data[chance.randrange(len(data))] = chance.randrange(256)
    attempt(bytes(data[: len(data) - lost]), BASES[base][1])


@pytest.mark.parametrize("base", BASES)
def test_the_models_themselves_work(base: str) -> None:
    make, shape = BASES[base]
    assert attempt(make().SerializeToString(), shape) == ""


def split_in(count: int) -> Any:
    proto = BASES["transformer"][0]()
    (node,) = [n for n in proto.graph.node if n.op_type == "Split"]
    (number,) = [a for a in node.attribute if a.name == "num_outputs"]
    number.i = count
    return proto


# What fuzzing has found.


@pytest.mark.parametrize("count", [1 << 40, 2, -1, 0])
def test_a_split_into_more_than_there_are_outputs(count: int) -> None:
    """It was counted up to the attribute's number."""
    with pytest.raises(FormatError, match=rf"Split 'split_q': num_outputs={count}, and there are 3"):
        mx.onnx.load(split_in(count))(nd.ones((2, 5, 8)))


def test_a_loop_without_end_is_not_begun() -> None:
    """It was built for thousands of turns before it was refused."""
    for trips in (None, 1 << 40):
        proto = BASES["looping"][0]()
        (branch,) = [a.g for a in proto.graph.node[0].attribute if a.name == "then_branch"]
        if trips is None:
            branch.node[0].input[0] = ""
        else:
            next(t for t in proto.graph.initializer if t.name == "trips").raw_data = np.int64(trips).tobytes()
        with pytest.raises(UnsupportedError, match=r"Loop .*more than 4096 turns"):
            mx.onnx.load(proto)(nd.ones((2, 2)))


def test_every_annotation_of_an_attribute_is_checked() -> None:
    assert {kind for row in rows() for kind in row.kinds.values()} <= {*KINDS, "Any"}


@pytest.mark.parametrize(
    ("name", "value", "kind"), [("axis", 2.5, "integer"), ("axis", "last", "integer"), ("perm", 1, "list of integers")]
)
def test_attributes_of_another_type(name: str, value: Any, kind: str) -> None:
    """A part of them came as far as numpy."""
    proto = BASES["transformer"][0]()
    node = next(n for n in reversed(proto.graph.node) if any(a.name == name for a in n.attribute))
    next(a for a in node.attribute if a.name == name).CopyFrom(helper.make_attribute(name, value))
    with pytest.raises(FormatError, match=rf"{node.op_type} '\w+': attribute {name}={value!r} is no {kind}"):
        mx.onnx.load(proto)


def test_long_names_are_not_repeated_in_messages() -> None:
    proto = BASES["cnn"][0]()
    array = proto.graph.initializer[0]
    array.data_location = 1
    array.external_data.add(key="location", value="x" * 5000)
    assert "whose name has 5000 characters" in attempt(proto.SerializeToString(), (3, 2, 6, 6))
    data = BASES["cnn"][0]().SerializeToString()
    place = data.index(b"bn.weight")
    assert attempt(data[:place] + b"\xff" * 9 + data[place + 9 :], (3, 2, 6, 6))
