"""An exported program made ready: its placeholders sorted, its operators found, its inputs described."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gluongraph.errors import ShapeError, UnsupportedError, with_user_location
from gluongraph.torch.aten.context import DTYPE_NAMES
from gluongraph.torch.aten.draws import draws_of
from gluongraph.torch.aten.table import IGNORED, REFUSED, TABLE
from gluongraph.torch.export import Exported, ExportError, quiet, torch
from gluongraph.torch.tensors import to_numpy
from gluongraph.tracing.padding.free_axes import FreeAxes


@dataclass(frozen=True)
class Input:
    """One array that the program takes: its name, element type, extents (a number, or sympy's expression), and the
    same as they are shown."""

    name: str
    dtype: str
    shape: tuple[Any, ...]
    shown: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name!r} {self.dtype}[{','.join(self.shown)}]"


class Program:
    """What a block needs of an exported program.

    `sources` says for each placeholder of the graph what it is: ("input", number), ("state", name) or ("constant",
    array or number). `moved` are the names of the states that the program changes, in the order of their outputs.
    """

    def __init__(self, exported: Exported, state: Mapping[str, str], names: Sequence[Mapping[int, str]] = ()):
        """`state` are the names of parameters and buffers, by all of the names that they have; `names` those of axes,
        for each input."""
        self.exported, self.graph = exported, exported.program.graph
        self.inputs: list[Input] = []
        self._leaves: list[Any] = []  # of the arguments: an `Input`, or a Python value that is part of the program
        self.sources: dict[str, tuple[str, Any]] = {}
        nodes = {n.name: n for n in self.graph.nodes}
        specs = exported.program.graph_signature.input_specs
        self._names = _names_of_symbols([nodes[s.arg.name] for s in specs if _is_array(s, nodes)], names)
        for spec in specs:
            self._add(spec, nodes, state)
        outputs = exported.program.graph_signature.output_specs
        self.moved = {i: state[s.target] for i, s in enumerate(outputs) if s.kind.name == "BUFFER_MUTATION"}
        self.results = tuple(i for i, s in enumerate(outputs) if s.kind.name == "USER_OUTPUT")
        spec = exported.program.call_spec
        self.in_spec, self.out_spec = spec.in_spec, spec.out_spec
        self._check_operators()

    def __deepcopy__(self, memo: object) -> Program:
        return self  # nothing changes it

    def _add(self, spec: Any, nodes: Mapping[str, Any], state: Mapping[str, str]) -> None:
        """Sort one placeholder."""
        kind, name = spec.kind.name, spec.arg.name
        if kind == "USER_INPUT":
            if hasattr(spec.arg, "value"):  # a Python number or text: part of the program
                self.sources[name] = ("constant", spec.arg.value)
                self._leaves.append(spec.arg.value)
                return
            value = nodes[name].meta["val"]
            if not hasattr(value, "shape"):
                message = f"the input {name!r} is a number that may vary"
                raise ExportError(with_user_location(message, help="pass an array"))
            shape = _extents(value)
            self.sources[name] = ("input", len(self.inputs))
            self.inputs.append(Input(name, DTYPE_NAMES[str(value.dtype)], shape, tuple(map(self._show, shape))))
            self._leaves.append(self.inputs[-1])
        elif kind in ("PARAMETER", "BUFFER"):
            self.sources[name] = ("state", state[spec.target])
        elif kind == "CONSTANT_TENSOR":
            self.sources[name] = ("constant", to_numpy(self.exported.program.constants[spec.target]))
        else:
            raise self._of_object(nodes[name], kind)

    def _show(self, extent: Any) -> str:
        """An extent with the names that its symbols have."""
        return str(extent if isinstance(extent, int) else extent.subs(self._names))

    def _of_object(self, node: Any, kind: str) -> ExportError:
        """The error of a placeholder that is no array, as a torch.Generator is none."""
        origins = [self.exported.origins[user.name] for user in node.users if user.name in self.exported.origins]
        line = f"\n  at {origins[0].file}:{origins[0].line}" if origins else ""
        message = f"the program takes {node.name!r}, a {kind.lower()}, as torch.Generator is: there are none here{line}"
        help = "leave generator=... out: mx.random.seed seeds what compiled steps draw"
        help = f"{help}; or {self.exported.otherwise}" if self.exported.otherwise else help
        return ExportError(with_user_location(message, help=help))

    # -- operators

    def _check_operators(self) -> None:
        """Refuse, before anything is built, operators that do not exist here."""
        missing: dict[str, Any] = {}
        for node in all_nodes(self.exported.program.graph_module):
            key = key_of(node.target)
            if key not in TABLE and key not in IGNORED:
                missing.setdefault(key, node)
        if not missing:
            return
        key, node = next(iter(missing.items()))
        origin = self.exported.origins.get(node.name)
        where = f" in {origin.scope}" if origin is not None and origin.scope else ""
        line = f"\n  at {origin.file}:{origin.line}" if origin is not None else ""
        rest = f"; nor {', '.join(list(missing)[1:6])}" if len(missing) > 1 else ""
        why, help = REFUSED.get(key, ("there is no such operator here", ""))
        help = help or 'write its meaning: @mx.torch.operator("library::name"), or compute it by other operators'
        help = f"{help}; or {self.exported.otherwise}" if self.exported.otherwise else help
        raise UnsupportedError(with_user_location(f"{key}{where}: {why}{rest}{line}", help=help))

    @property
    def draws(self) -> int:
        """How many times a call draws random numbers."""
        return sum(map(_draws, all_nodes(self.exported.program.graph_module)))

    # -- inputs

    @property
    def free_axes(self) -> FreeAxes:
        """The free axes of the inputs: those whose extent is a symbol."""
        places, mixed = [], dict[str, str]()
        for input in self.inputs:
            free = {k: n for k, n in enumerate(input.shape) if not isinstance(n, int)}
            places.append({k: self._show(n) for k, n in free.items() if n.is_Symbol})
            for axis, extent in free.items():
                if not extent.is_Symbol:
                    mixed |= {self._show(s): f"axis {axis} of {input}" for s in extent.free_symbols}
        ranges, constraints = {}, self.exported.program.range_constraints
        allowed_by_name = {self._show(symbol): allowed for symbol, allowed in constraints.items()}
        for name in dict.fromkeys(name for axes in places for name in axes.values()):
            allowed = allowed_by_name.get(name)
            high = None if allowed is None or not allowed.upper.is_Integer else int(allowed.upper)
            ranges[name] = (0 if allowed is None else int(allowed.lower), high)
        return FreeAxes(tuple(places), ranges, mixed)

    def bind(self, types: Sequence[tuple[str, tuple[int, ...]]], what: str) -> None:
        """Check shapes against those that the program was exported for.

        Raises:
            ShapeError: they do not fit.
        """
        extents: dict[Any, int] = {}
        later: list[tuple[Input, int, Any, int]] = []
        for input, (_, shape) in zip(self.inputs, types, strict=True):
            if len(shape) != len(input.shape):
                raise self._misfit(what, input, shape, f"it has {len(input.shape)} axes")
            for axis, (expected, given) in enumerate(zip(input.shape, shape, strict=True)):
                if isinstance(expected, int):
                    if expected != given:
                        raise self._misfit(what, input, shape, f"axis {axis} was exported with {expected} elements")
                elif expected.is_Symbol:
                    if extents.setdefault(expected, given) != given:
                        raise self._misfit(
                            what, input, shape, f"{self._show(expected)} is {extents[expected]} elsewhere"
                        )
                    self._check_range(what, input, shape, expected, given)
                else:
                    later.append((input, axis, expected, given))
        for input, axis, expected, given in later:
            found = expected.subs(extents)
            if found.is_number and int(found) != given:
                shape = types[self.inputs.index(input)][1]
                raise self._misfit(what, input, shape, f"axis {axis} has to be {self._show(expected)} = {int(found)}")

    def _check_range(self, what: str, input: Input, shape: Sequence[int], symbol: Any, given: int) -> None:
        allowed = self.exported.program.range_constraints.get(symbol)
        if allowed is not None and not allowed.lower <= given <= allowed.upper:
            raise self._misfit(
                what, input, shape, f"{self._show(symbol)} lies between {allowed.lower} and {allowed.upper}"
            )

    def _misfit(self, what: str, input: Input, shape: Sequence[int], why: str) -> ShapeError:
        help = "from_torch(..., dynamic_shapes=) for other extents, as torch.export has it"
        return ShapeError(with_user_location(f"{what}: input {input} cannot be {list(shape)}: {why}", help=help))

    def leaves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str) -> list[Any]:
        """The arrays among the arguments, in the order of `inputs`.

        Arguments have the structure of the examples; or they are the arrays alone, in their order.

        Raises:
            TypeError: neither; or a Python value is another one than that of the example.
        """
        names = self.in_spec.child(1).context or ()
        ordered = {k: kwargs[k] for k in names if k in kwargs} | dict(kwargs)
        with quiet():
            flat, spec = torch().utils._pytree.tree_flatten((args, ordered))
        if spec != self.in_spec:
            if not kwargs and len(args) == len(self.inputs):
                return list(args)
            raise TypeError(with_user_location(self._structure(what), help="call it as in the example"))
        arrays = []
        for given, expected in zip(flat, self._leaves, strict=True):
            if isinstance(expected, Input):
                arrays.append(given)
            elif given != expected:
                message = f"{what}: an argument is {given!r}, and the program was exported for {expected!r}"
                raise TypeError(with_user_location(message, help="another from_torch for another value"))
        return arrays

    def _structure(self, what: str) -> str:
        with quiet():
            args, kwargs = torch().utils._pytree.tree_unflatten([str(v) for v in self._leaves], self.in_spec)
        shown = [*map(str, args), *(f"{k}={v}" for k, v in kwargs.items())]
        return f"{what} takes {', '.join(shown)}"

    def restore(self, results: Sequence[Any]) -> Any:
        """The results in the structure that the module returns."""
        specs = [self.exported.program.graph_signature.output_specs[i] for i in self.results]
        values = iter(results)
        leaves = [s.arg.value if hasattr(s.arg, "value") else next(values) for s in specs]
        return _unflattened(iter(leaves), self.out_spec)


def _is_array(spec: Any, nodes: Mapping[str, Any]) -> bool:
    """Is this the placeholder of an array among the arguments?"""
    is_input = spec.kind.name == "USER_INPUT" and not hasattr(spec.arg, "value")
    return is_input and hasattr(nodes[spec.arg.name].meta["val"], "shape")


def _extents(value: Any) -> tuple[Any, ...]:
    """Of a traced tensor: numbers, or sympy's expressions."""
    return tuple(n if isinstance(n, int) else n.node.expr for n in value.shape)


def _names_of_symbols(nodes: Sequence[Any], names: Sequence[Mapping[int, str]]) -> dict[Any, Any]:
    """For symbols of extents: symbols with the names of axes that are as long. A name that stands for several symbols
    is none."""
    found: dict[Any, str] = {}
    for node, axes in zip(nodes, names, strict=False):
        extents = _extents(node.meta["val"])
        for axis, name in axes.items():
            if not isinstance(extents[axis], int) and extents[axis].is_Symbol:
                found.setdefault(extents[axis], name)
    counts = Counter(found.values())
    return {symbol: type(symbol)(name) for symbol, name in found.items() if counts[name] == 1}


def _unflattened(leaves: Any, spec: Any) -> Any:
    """Lists, tuples and dicts as they are; whatever else has fields as `Fields`."""
    if spec.is_leaf():
        return next(leaves)
    parts = [_unflattened(leaves, spec.child(k)) for k in range(spec.num_children)]
    if spec.type in (tuple, list):
        return spec.type(parts)
    if spec.type is dict:
        return dict(zip(spec.context, parts, strict=True))
    names = _field_names(spec)
    if names is not None and len(names) == len(parts):
        return Fields(zip(names, parts, strict=True))
    with quiet():
        return torch().utils._pytree.SUPPORTED_NODES[spec.type].unflatten_fn(parts, spec.context)


def _field_names(spec: Any) -> list[str] | None:
    """The names of the parts of a dataclass or of a dict with attributes."""
    if spec.type is None or issubclass(spec.type, tuple):
        return None
    context = spec.context
    if isinstance(context, list) and context and isinstance(context[0], list | tuple):
        context = context[0]
    names = list(context) if isinstance(context, list | tuple) else None
    return names if names and all(isinstance(n, str) for n in names) else None


class Fields(dict[str, Any]):
    """A dict whose values are attributes, too: what modules return as a dataclass.

    >>> from gluongraph.torch.program import Fields
    >>> Fields(logits=1).logits
    1
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _draws(node: Any) -> int:
    """How many times an operator draws random numbers."""
    return draws_of(key_of(node.target).split(".")[1], node.args, node.kwargs)


def all_nodes(graph_module: Any) -> list[Any]:
    """The calls of a graph and of the graphs within it."""
    graphs = [m.graph for m in graph_module.modules() if hasattr(m, "graph")]
    return [n for graph in graphs for n in graph.nodes if n.op == "call_function"]


def key_of(target: Any) -> str:
    """What the table calls an operator: "aten.add.Tensor", "higher_order.cond", "_operator.mul"."""
    if hasattr(target, "_schema") or hasattr(target, "overloadpacket"):
        return str(target)
    if type(target).__module__.startswith("torch._higher_order") or hasattr(target, "dispatch"):
        return f"higher_order.{target.__name__}"
    if str(getattr(target, "__module__", "")).startswith("torch"):
        return f"torch.{target.__name__}"
    return f"{target.__module__}.{target.__name__}"
