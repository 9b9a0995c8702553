"""Ways in which a model can be wrong, each a function that changes one thing of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_models as models
from onnx import AttributeProto, TensorProto, helper

Chance = random.Random
Mutation = Callable[[Any, Chance], None]
ABSURD = (-(1 << 63), -(1 << 40), -1, 0, 1, 7, 1 << 20, 1 << 40, (1 << 63) - 1)
MUTATIONS: dict[str, Mutation] = {}


def mutation(made: Mutation) -> Mutation:
    MUTATIONS[made.__name__] = made
    return made


def looping() -> Any:
    """A branch, a loop and a function within one another."""
    turn = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["state", "x"], ["next"])],
        "turn",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
        ],
    )
    branch = helper.make_graph(
        [helper.make_node("Loop", ["trips", "", "x"], ["looped"], body=turn)],
        "branch",
        [],
        [helper.make_tensor_value_info("looped", TensorProto.FLOAT, None)],
    )
    double = helper.make_function(
        "mine", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 20)]
    )
    nodes = [
        helper.make_node("If", ["yes"], ["z"], then_branch=branch, else_branch=branch),
        helper.make_node("Double", ["z"], ["y"], domain="mine"),
    ]
    arrays = {"trips": np.array(3), "yes": np.array(True)}
    return models.model(nodes, {"x": ["n", 2]}, ["y"], arrays, domains={"mine": 1}, functions=[double])


def shapes() -> Any:
    """Operators whose inputs decide shapes."""
    nodes = [
        models.node("Shape", "x", "s"),
        models.node("Gather", "s zero", "n"),
        models.node("Pad", "x pads", "p"),
        models.node("Slice", "p start stop axes", "c"),
        models.node("Tile", "c times", "t"),
        models.node("Resize", "t _ scales", "r", mode="linear"),
        models.node("Reshape", "r flat", "f"),
        models.node("TopK", "f k", "v i", axis=-1),
        models.node("OneHot", "i depth onoff", "o", axis=1),
        models.node("ReduceSum", "o axes", "y", keepdims=0),
    ]
    arrays = {
        "zero": np.array(0), "pads": np.array([0, 1, 0, 1]), "start": np.array([1]), "stop": np.array([4]),
        "axes": np.array([1]), "times": np.array([1, 2]), "scales": np.array([1, 2], np.float32),
        "flat": np.array([0, -1]), "k": np.array([2]), "depth": np.array(4), "onoff": np.array([0, 1], np.float32),
    }  # fmt: skip
    return models.model(nodes, {"x": ["n", 3]}, ["y"], arrays)


BASES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    **{name: (make, models.INPUTS[name]) for name, make in models.MAKERS.items()},
    "looping": (looping, (2, 2)),
    "shapes": (shapes, (2, 3)),
}


# -- what to change


def graphs(proto: Any) -> Iterator[Any]:
    """The graph, and those within it."""
    waiting = [proto.graph]
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting += [a.g for n in graph.node for a in n.attribute if a.HasField("g")]


def node_of(proto: Any, chance: Chance) -> Any:
    return chance.choice([n for g in graphs(proto) for n in g.node])


def array_of(proto: Any, chance: Chance) -> Any:
    return chance.choice(proto.graph.initializer)


@mutation
def another_operator(proto: Any, chance: Chance) -> None:
    node_of(proto, chance).op_type = chance.choice(
        ["", "Relu", "Conv", "Loop", "If", "Scan", "Gemm", "Concat", "Split", "Resize", "Einsum", "NonZero", "Nothing"]
    )


@mutation
def another_domain(proto: Any, chance: Chance) -> None:
    node_of(proto, chance).domain = chance.choice(["ai.onnx", "ai.onnx.ml", "com.example", "mine"])


@mutation
def another_input(proto: Any, chance: Chance) -> None:
    """Often one that a later node makes."""
    node = node_of(proto, chance)
    if node.input:
        names = [name for n in proto.graph.node for name in (*n.output, *n.input)]
        node.input[chance.randrange(len(node.input))] = chance.choice([*names, "", "nowhere"])


@mutation
def another_output(proto: Any, chance: Chance) -> None:
    node = node_of(proto, chance)
    if node.output:
        node.output[chance.randrange(len(node.output))] = chance.choice(["", "x", "y", "else"])


@mutation
def inputs_more_or_fewer(proto: Any, chance: Chance) -> None:
    node = node_of(proto, chance)
    if node.input and chance.random() < 0.5:
        node.input.pop()
    else:
        node.input.append(chance.choice(["x", ""]))


@mutation
def no_node(proto: Any, chance: Chance) -> None:
    graph = chance.choice(list(graphs(proto)))
    if graph.node:
        del graph.node[chance.randrange(len(graph.node))]


@mutation
def an_attribute_of_another_type(proto: Any, chance: Chance) -> None:
    found = [a for g in graphs(proto) for n in g.node for a in n.attribute]
    if found:
        attribute, name = chance.choice(found), ""
        name = attribute.name
        attribute.CopyFrom(
            helper.make_attribute(name, chance.choice([1, -1, 2.5, "text", [1, 2], [1.5], ["a", "b"], 1 << 62]))
        )


@mutation
def an_attribute_more(proto: Any, chance: Chance) -> None:
    name = chance.choice(["axis", "axes", "perm", "body", "to", "group", "kernel_shape", "auto_pad", "hidden_size"])
    value = chance.choice([-9, 0, 3, 1 << 40, [0, 0], [5, 5, 5], "SAME_UPPER", 0.5])
    node_of(proto, chance).attribute.append(helper.make_attribute(name, value))


@mutation
def an_attribute_that_refers(proto: Any, chance: Chance) -> None:
    node_of(proto, chance).attribute.add(name="axis", ref_attr_name="outside", type=AttributeProto.INT)


@mutation
def absurd_attributes(proto: Any, chance: Chance) -> None:
    found = [a for g in graphs(proto) for n in g.node for a in n.attribute if a.type in (2, 7)]
    if found:
        attribute = chance.choice(found)
        attribute.i = chance.choice(ABSURD)
        for k in range(len(attribute.ints)):
            attribute.ints[k] = chance.choice([attribute.ints[k], *ABSURD])


@mutation
def absurd_numbers(proto: Any, chance: Chance) -> None:
    """In the arrays that decide shapes, among others."""
    array = array_of(proto, chance)
    if array.data_type == TensorProto.INT64:
        size = len(array.raw_data) // 8
        array.raw_data = np.array([chance.choice(ABSURD) for _ in range(size)], "<i8").tobytes()
    elif array.data_type == TensorProto.FLOAT:
        wild = [float("nan"), float("inf"), -float("inf"), 3e38, 1e-45, -1.0, 0.0]
        size = len(array.raw_data) // 4
        array.raw_data = np.array([chance.choice(wild) for _ in range(size)], "<f4").tobytes()


@mutation
def another_shape(proto: Any, chance: Chance) -> None:
    array = array_of(proto, chance)
    array.dims[:] = [chance.choice([*array.dims, *ABSURD]) for _ in range(chance.randrange(5))]


@mutation
def another_element_type(proto: Any, chance: Chance) -> None:
    array_of(proto, chance).data_type = chance.choice([0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 14, 16, 17, 22, 99, -1])


@mutation
def fewer_bytes(proto: Any, chance: Chance) -> None:
    array = array_of(proto, chance)
    array.raw_data = array.raw_data[: chance.randrange(len(array.raw_data) + 1)]


@mutation
def external_data(proto: Any, chance: Chance) -> None:
    array = array_of(proto, chance)
    array.data_location = TensorProto.EXTERNAL
    location = chance.choice(["../../etc/passwd", "/etc/passwd", "", ".", "\0", "x" * 5000, "weights.bin"])
    array.external_data.add(key="location", value=location)
    array.external_data.add(key="offset", value=chance.choice(["0", "-1", "many", str(1 << 70)]))


@mutation
def another_input_type(proto: Any, chance: Chance) -> None:
    value = chance.choice(proto.graph.input).type
    chance.choice(
        [
            lambda: value.Clear(),
            lambda: value.tensor_type.ClearField("shape"),
            lambda: setattr(value.tensor_type, "elem_type", chance.choice([0, 2, 7, 8, 10, 99])),
            lambda: value.sequence_type.elem_type.tensor_type.SetInParent(),
            lambda: value.tensor_type.shape.dim.add(dim_value=chance.choice(ABSURD)),
            lambda: value.tensor_type.shape.dim.add(dim_param="n"),
        ]
    )()


@mutation
def other_versions(proto: Any, chance: Chance) -> None:
    if chance.random() < 0.3:
        del proto.opset_import[:]
    else:
        chance.choice(proto.opset_import).version = chance.choice([*ABSURD, 6, 9, 11, 12, 13, 17, 18, 25])


@mutation
def names_twice(proto: Any, chance: Chance) -> None:
    graph = chance.choice(list(graphs(proto)))
    what = chance.choice([graph.input, graph.output, graph.initializer, graph.node])
    if len(what):
        what.append(chance.choice(what))


@mutation
def no_names(proto: Any, chance: Chance) -> None:
    graph = chance.choice(list(graphs(proto)))
    what = chance.choice([graph.input, graph.output, graph.initializer])
    if len(what):
        chance.choice(what).name = chance.choice(["", "\0", "x\ny", "ä" * 300])


@mutation
def functions_of_functions(proto: Any, chance: Chance) -> None:
    """One that calls itself, or another in a circle; or one that hides an operator."""
    name, other = chance.choice(["Relu", "Double", "Conv"]), chance.choice(["Relu", "Double", "Conv"])
    domain = chance.choice(["", "mine"])
    body = [helper.make_node(other, ["a"], ["b"], domain=domain)]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    proto.functions.append(helper.make_function(domain, name, ["a"], ["b"], body, opsets))
    proto.opset_import.append(helper.make_opsetid("mine", 1))


@mutation
def graphs_within_graphs(proto: Any, chance: Chance) -> None:
    """A branch that holds the graph, which holds a branch, and so on."""
    for _ in range(chance.choice([1, 3, 8])):
        inner = type(proto.graph)()
        inner.CopyFrom(proto.graph)
        del inner.input[:]
        branches = {"then_branch": inner, "else_branch": inner} if chance.random() < 0.2 else {"then_branch": inner}
        del proto.graph.node[:]
        proto.graph.node.append(helper.make_node("If", ["yes"], [proto.graph.output[0].name], **branches))
        if proto.ByteSize() > 1 << 18:
            return
