"""From gradients to updates: the optimizer's formula for each parameter, appended to a graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gluongraph import ops
from gluongraph.context import SHARED, Context, current_context
from gluongraph.eager.row_sparse_updates import update_rows
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.ir.graph import OPS, Graph, Node, TensorType, node, topological
from gluongraph.optimizer.arguments import check_number
from gluongraph.optimizer.base import Optimizer, computed_in, noise_of
from gluongraph.optimizer.counting import Index
from gluongraph.tracing.tracer import STATE_TYPE, is_argument, is_rng, rng_name

GRAD = "grad:"
SCALAR = "scalar:"
Draws = Mapping[str, tuple[Context, int]]
NO_DRAWS: Draws = {}


def is_reserved(name: str) -> bool:
    """Is this the name of an argument, a scalar or a generator's state, not of an array that the program captured?"""
    return is_argument(name) or name.startswith(SCALAR) or is_rng(name)


def joined(inputs: Mapping[str, Node], more: Mapping[str, Node]) -> dict[str, Node]:
    """Return the inputs of a graph and those that a step adds, which are named after parameters.

    Raises:
        MXNetError: a parameter has the name of an added input.
    """
    if taken := [name for name in more if name in inputs]:
        message = f"a parameter is called {taken[0]!r}, which is what a training step calls an array of its own"
        raise MXNetError(with_user_location(message, help="give the parameter, or its block, another name"))
    return {**inputs, **more}


@dataclass(frozen=True)
class ScalarTable:
    """The scalar inputs of a graph with updates, in order, and the sources of their values.

    `keys` are the names after "scalar:". Parameters whose scalars are equal at every step form a group; a key is its
    plain name ("lr") if there is one group or it is equal for all, else "lr:<group>". `draws` says for each input with
    a generator's state which context's it is, and how many draws a call makes.
    """

    keys: tuple[str, ...]
    indices: tuple[Index, ...]
    groups: tuple[tuple[Index, ...], ...]
    entries: tuple[tuple[int, str], ...]  # (group, scalar) of each key
    draws: Draws

    def values(self, optimizer: Optimizer) -> list[float]:
        """Return the scalars of the update that `optimizer.count(table.indices)` has just started, in float64."""
        tables = [optimizer.scalars(members[0]) for members in self.groups]
        return [tables[group][name] for group, name in self.entries]

    def is_constant(self, optimizer: Optimizer) -> bool:
        """Are all of them the same at every update, until somebody changes a setting of the optimizer?"""
        return all(optimizer.member(self.groups[group][0]).is_constant(name) for group, name in self.entries)

    def reduced_to(self, keys: Collection[str], draws: Draws) -> ScalarTable:
        """Return the table of these keys only, in the same order, with other draws."""
        kept = [(key, entry) for key, entry in zip(self.keys, self.entries, strict=True) if key in keys]
        return replace(self, keys=tuple(k for k, _ in kept), entries=tuple(e for _, e in kept), draws=draws)

    def holds(self, optimizer: Optimizer) -> bool:
        """Are the groups still those of the optimizer? They can only differ if `optimizer.edits` has changed."""
        return self.groups == groups(optimizer, self.indices)


def groups(optimizer: Optimizer, indices: Sequence[Index]) -> tuple[tuple[Index, ...], ...]:
    """Group parameters with equal scalars: same multipliers, same difference of their update counts."""
    found: dict[tuple[float, float, int], list[Index]] = {}
    for i in indices:
        found.setdefault(optimizer.alike(i), []).append(i)
    return tuple(map(tuple, found.values()))


def state_name(parameter: str, state: str) -> str:
    """Return the name of the input of a parameter's optimizer state: 'dense0_weight/mean'."""
    return f"{parameter}/{state}"


def apply_updates(
    graph: Graph,
    optimizer: Optimizer,
    params: Sequence[str] | Mapping[str, int] | Mapping[str, tuple[int, ...]],
    *,
    keep_grads: bool = False,
    draws: Draws = NO_DRAWS,
    context: Context | None = None,
    by_rows: Collection[str] = (),
) -> tuple[Graph, ScalarTable]:
    """Replace every output "grad:<name>" by the update of <name> and of its states.

    `params` are the parameters in trainer order: the position is the index by which the optimizer counts updates; or it
    maps each to its index, if several share one, or to the indices of all that are updated as one. Parameters without a
    gradient among the outputs are not updated. New inputs are the states, "<name>/<state>", and the scalars,
    "scalar:<key>", of type f32[], or f64[] where a float64 parameter reads it. Random numbers of the updates come from
    the generator of `context`, after the `draws` of the graph; replicas of a parameter get the same ones. Of the inputs
    in `by_rows` only the rows that the gradient touches are updated.

    Raises:
        MXNetError: the parameter of a gradient is not in `params`, or is not an input of the graph.
    """
    given = params if isinstance(params, Mapping) else {name: i for i, name in enumerate(params)}
    members = {name: (i,) if isinstance(i, int) else i for name, i in given.items()}
    at = {name: indices[0] for name, indices in members.items()}
    grads = {k.removeprefix(GRAD): n for k, n in graph.outputs.items() if k.startswith(GRAD)}
    for name in grads:
        if name not in at or name not in graph.inputs:
            raise MXNetError(f"the graph has a gradient of {name!r}, which the trainer does not hold as a parameter")
    ordered = sorted(grads, key=at.__getitem__)
    table = scalar_table(optimizer, tuple(dict.fromkeys(i for name in ordered for i in members[name])))
    dice = _Dice(graph, optimizer, draws, context or current_context())
    number = {index: i for i, index in enumerate(table.indices)}
    group_of = {i: number for number, members in enumerate(table.groups) for i in members}
    wide = {group_of[at[name]] for name in ordered if graph.inputs[name].dtype == "f64"}
    scalars = {
        key: _input(SCALAR + key, TensorType((), "f64" if wide and (":" not in key or number in wide) else "f32"))
        for key, (number, _) in zip(table.keys, table.entries, strict=True)
    }

    inputs, updates = graph.inputs, dict(graph.updates)
    for name in ordered:
        weight = graph.inputs[name]
        member = optimizer.member(at[name])
        state = {s: _input(state_name(name, s), ty) for s, ty in member.state_types(weight.ty).items()}
        s = _scalars_of(group_of[at[name]], table, scalars, computed_in(weight.dtype))
        s |= dice.noise(member, weight.ty, number[at[name]])
        update = partial(member.updated, s=s)
        new: Mapping[str, Node]
        if name in by_rows:
            updates[name], new = update_rows(weight, grads[name], state, update)
        else:
            updates[name], new = update(weight, grads[name], state)
        inputs = joined(inputs, {state_name(name, key): old for key, old in state.items()})
        updates |= {state_name(name, key): new[key] for key in state}
    read = set(topological(updates.values()))
    table = table.reduced_to({key for key, n in scalars.items() if n in read}, dice.after(len(table.indices)))
    inputs = {**inputs, **{SCALAR + key: scalars[key] for key in table.keys}}
    if optimizer.draws:
        inputs[dice.name] = dice.state
    outputs = {k: n for k, n in graph.outputs.items() if keep_grads or not k.startswith(GRAD)}
    return Graph(inputs, outputs, updates, graph.origins), table


class _Dice:
    """The random numbers of the updates: from the generator of a device, after the draws of the graph."""

    def __init__(self, graph: Graph, optimizer: Optimizer, draws: Draws, context: Context):
        known = {ctx: name for name, (ctx, _) in draws.items()}
        self.name = known.get(context) or rng_name(context, first=not draws and context != SHARED)
        self.state = graph.inputs.get(self.name) or _input(self.name, STATE_TYPE)
        self.optimizer, self.before, self.context = optimizer, draws, context
        self.drawn = draws[self.name][1] if self.name in draws else 0

    def noise(self, member: Optimizer, weight: TensorType, number: int) -> dict[str, Node]:
        """Return the random arrays of the update with this number, by this member of the optimizer."""
        return noise_of(member, weight, self.state, self.drawn + number * self.optimizer.draws)

    def after(self, updates: int) -> Draws:
        """Return the draws of the graph with `updates` updates."""
        made = updates * self.optimizer.draws
        return {**self.before, self.name: (self.context, self.drawn + made)} if made else self.before


def scalar_table(optimizer: Optimizer, indices: tuple[Index, ...]) -> ScalarTable:
    """Return the scalars that an update of these parameters needs, each once."""
    parts = groups(optimizer, indices)
    entries: dict[str, tuple[int, str]] = {}
    with optimizer.undone():
        optimizer.count(indices)
        for number, members in enumerate(parts):
            for name, value in optimizer.scalars(members[0]).items():
                check_number(optimizer, f"what scalars() gives for {name!r}", value)
                apart = len(parts) > 1 and optimizer.may_differ(name)
                entries.setdefault(f"{name}:{number}" if apart else name, (number, name))
    return ScalarTable(tuple(entries), indices, parts, tuple(entries.values()), NO_DRAWS)


def _scalars_of(group: int, table: ScalarTable, nodes: Mapping[str, Node], dtype: str) -> dict[str, Node]:
    """Return the scalars that a parameter of this group reads, by their plain names, in the dtype of its formula."""
    found = {}
    for key, (number, name) in zip(table.keys, table.entries, strict=True):
        if number == group or ":" not in key:
            found[name] = nodes[key] if nodes[key].dtype == dtype else ops.cast(nodes[key], dtype)
    return found


def _input(name: str, ty: TensorType) -> Node:
    return node(OPS["input"], (), {"name": name}, type=ty)
