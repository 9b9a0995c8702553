"""What PyTorch's exporters leave in a file about the module that was exported: which arrays are parameters, and what
was done to them. `torch.onnx.export(..., dynamo=True)` writes it into `metadata_props` (PyTorch 2.5 and later)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

PRODUCER = "pytorch"
PARAMETER = "PARAMETER"  # one of InputSpec.kind; the others are BUFFER, CONSTANT_TENSOR, USER_INPUT

_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_FX_NODE = "pkg.torch.onnx.fx_node"
_FOLDED = "pkg.onnxscript.optimizer.folded_from"
_RULE = "pkg.onnxscript.rewriter.rule_name"

# A line of the signature: "p_fc_bias: PARAMETER target='fc.bias'", or "b_mask: BUFFER target='mask' persistent=True".
_SPEC = re.compile(r"^(\w+): ([A-Z_]+)(?: target='([^']*)')?", re.MULTILINE)
_QUOTED = re.compile(r"'([^']*)'")  # an element of ['fc.weight', 'val_3']
_DEFINED = re.compile(r"%(\w+) :")  # "%linear : [num_users=1] = call_function[...](args = (%x, %p_fc_weight), ...)"
_NAMED = re.compile(r"%(\w+)")
_TARGET = re.compile(r"\[target=torch\.ops\.([\w.]+)\]")
# Nodes of torch.fx that no operator of a file stands for: parts of a tuple, and the graphs of torch.cond and loops.
_NO_OPERATOR = re.compile(r"getitem(_\d+)?|\w*_graph_\d+")


@dataclass(frozen=True)
class TorchMetadata:
    """The names are those of the file, which are the module's own for parameters and buffers.

    `kinds` says of arrays what they are. `parameters` are those of the module, also if the file lacks them: what
    torch.fx calls each, and its name. `folded` has for arrays that were computed ahead what they were computed from,
    `fused` for nodes the rule that has made them of others. `mentioned` is what the nodes say that they came from,
    in names of torch.fx; `removed` is the part of it that no node of the file has made.
    """

    kinds: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    folded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fused: Mapping[str, str] = field(default_factory=dict)
    mentioned: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()


def torch_metadata(model: Any) -> TorchMetadata | None:
    """What the ModelProto says about its arrays; None if no exporter of PyTorch's has said anything."""
    graph = model.graph
    about: dict[str, dict[str, str]] = {t.name: _text_of(t) for t in graph.initializer}
    for value in graph.value_info:
        if value.name in about:
            about[value.name].update(_text_of(value))
    kinds = {name: props[_KIND] for name, props in about.items() if _KIND in props}
    specs = _SPEC.findall(_text_of(graph).get(_SIGNATURE, ""))
    if not kinds and not specs:
        return None
    parameters = {name: target for name, kind, target in specs if kind == PARAMETER}
    folded = {name: tuple(_QUOTED.findall(props[_FOLDED])) for name, props in about.items() if _FOLDED in props}
    nodes = [(str(n.name) or str(n.op_type), _text_of(n)) for n in graph.node]
    fused = {name: props[_RULE] for name, props in nodes if _RULE in props}
    texts = [props.get(_FX_NODE, "") for _, props in nodes]
    results = {name for name, kind, _ in specs if kind == "USER_OUTPUT" and name != "None"}
    mentioned = frozenset(_found(_NAMED, texts)) | results
    made = _found(_DEFINED, texts) | {name for name, kind, _ in specs if kind != "USER_OUTPUT"}
    removed = frozenset(n for n in mentioned - made if not _NO_OPERATOR.fullmatch(n))
    return TorchMetadata(kinds, parameters, folded, fused, mentioned, removed if any(texts) else frozenset())


def torch_op(node: Any) -> str:
    """The operation that a NodeProto was exported from, as "aten.clamp.default"; "" if it says none, or several."""
    found = set(_TARGET.findall(_text_of(node).get(_FX_NODE, "")))
    return found.pop() if len(found) == 1 else ""


def _text_of(proto: Any) -> dict[str, str]:
    """The metadata of one part of a file; what is no text is left out."""
    return {p.key: p.value for p in proto.metadata_props if isinstance(p.key, str) and isinstance(p.value, str)}


def _found(pattern: re.Pattern[str], texts: Iterable[str]) -> set[str]:
    return {name for text in texts for name in pattern.findall(text)}
