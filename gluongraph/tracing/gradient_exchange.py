"""Parameters on several contexts: the allreduce of their gradients, and the update of all replicas, in the graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gluongraph import ops
from gluongraph.context import SHARED, Context
from gluongraph.eager.function import leaf
from gluongraph.ir.graph import Graph, Node, TensorType, node
from gluongraph.kvstore.compression import Compression
from gluongraph.optimizer import Optimizer
from gluongraph.tracing.compressed_exchange import compressed_sums, wire_bytes
from gluongraph.tracing.optimizer_updates import GRAD, NO_DRAWS, Draws, ScalarTable, apply_updates, joined
from gluongraph.tracing.sharding import Sharding


@dataclass(frozen=True)
class Updating:
    """A graph with updates, its scalars, and the inputs for which the optimizer has states."""

    graph: Graph
    table: ScalarTable
    owners: tuple[str, ...]


@dataclass(frozen=True)
class Exchange:
    """The exchange of gradients between the replicas of parameters, and how replicas are updated.

    `replicas`: parameter -> the graph inputs that hold it, one per context; the first has the parameter's name.
    `once`: there is one update, from the sum of the gradients, and all replicas become its result. Otherwise every
    replica is updated by itself, with states of its own: from the sum if `summed`, else from its own gradient.
    `compression`: what is sent of gradients, by each replica or by each rank; None: they are sent as they are.
    `ranks`: the processes over which gradients are summed as well; `bucket` as in `ops.allreduce`.
    `reduced`: gradients are sums over ranks already.
    `sharding`: each rank updates its shards of the parameters; None: all of them.
    `by_rows`: parameters of which only the rows that the gradient touches are updated, where the optimizer can do that.
    """

    replicas: Mapping[str, tuple[str, ...]]
    once: bool = False
    summed: bool = False
    compression: Compression | None = None
    ranks: int = 1
    bucket: int = 0
    sharding: Sharding | None = None
    reduced: bool = False
    by_rows: frozenset[str] = frozenset()
    indices: Mapping[str, int] = field(
        init=False, compare=False
    )  # input -> the index by which the optimizer counts updates

    def __post_init__(self) -> None:
        numbered = {name: i for i, names in enumerate(self.replicas.values()) for name in names}
        object.__setattr__(self, "indices", numbered)

    def owners(self, graph: Graph) -> dict[str, dict[str, Node]]:
        """Return for each parameter the gradients of its replicas that are among the outputs."""
        found: dict[str, dict[str, Node]] = {}
        for parameter, names in self.replicas.items():
            if grads := {name: graph.outputs[GRAD + name] for name in names if GRAD + name in graph.outputs}:
                found[parameter] = grads
        return found

    def sums(self, graph: Graph) -> Graph:
        """Return the graph with the gradients of replicas replaced by their sum, that of the parameter."""
        totals = {GRAD + p: self._total(grads.values(), self.ranks) for p, grads in self.owners(graph).items()}
        return Graph(graph.inputs, {**_without_grads(graph), **totals}, graph.updates, graph.origins)

    def update(
        self,
        graph: Graph,
        optimizer: Optimizer,
        context: Context,
        *,
        draws: Draws = NO_DRAWS,
        keep_grads: bool = False,
        clip: Callable[[Graph], Graph] | None = None,
    ) -> Updating:
        """The outputs "grad:<input>" become the updates of their inputs.

        `clip` may change the gradients by which updates are made. With `keep_grads` those before stay outputs, as
        `grad(ctx)` is after a step in eager mode: the replica's own gradient, or where each is updated by itself, that
        by which it was. Random numbers come from the generator of `context`, after the `draws` of the graph.
        """
        own = {name: n for name, n in graph.outputs.items() if name.startswith(GRAD)}
        graph = self._meet(graph)
        if self.sharding is not None:
            return self._update_shards(graph, self.sharding, optimizer, context, draws, own if keep_grads else {}, clip)
        met = {name: n for name, n in graph.outputs.items() if name.startswith(GRAD)}
        owners = tuple(name.removeprefix(GRAD) for name in met)
        graph = graph if clip is None else clip(graph)
        by_rows = {name for p in self.by_rows for name in self.replicas[p]} if optimizer.lazy else ()
        context = context if self.ranks == 1 else SHARED  # ranks update alike
        graph, table = apply_updates(graph, optimizer, self.indices, draws=draws, context=context, by_rows=by_rows)
        if self.once:
            graph = self._part(graph, owners)
        if keep_grads:
            graph = graph.with_results({**graph.outputs, **(own if self.once else met)}, graph.updates)
        return Updating(graph, table, owners)

    def wire_bytes(self, replicas: Mapping[str, TensorType], optimizer: Optimizer, context: Context) -> int:
        """The bytes that each rank sends in one update of these replicas."""
        inputs = {prefix + name: leaf(prefix + name, ty) for prefix in ("", GRAD) for name, ty in replicas.items()}
        graph = Graph(inputs, {name: n for name, n in inputs.items() if name.startswith(GRAD)})
        return wire_bytes(self.update(graph, optimizer, context).graph)

    def _update_shards(
        self,
        graph: Graph,
        sharding: Sharding,
        optimizer: Optimizer,
        context: Context,
        draws: Draws,
        kept: Mapping[str, Node],
        clip: Callable[[Graph], Graph] | None,
    ) -> Updating:
        """`update`, of this rank's shards of the parameters; the gradients `kept` stay outputs."""
        graph, table = sharding.update(graph, optimizer, draws=draws, context=context, clip=clip)
        if not sharding.gathers:
            graph = self._part(graph, sorted(sharding.parameters))
        graph = graph.with_results({**graph.outputs, **kept}, graph.updates)
        return Updating(graph, table, tuple(bucket.name for bucket in sharding.buckets))

    def accumulating(self, graph: Graph, names: Collection[str]) -> Graph:
        """The gradients of these replicas are added to what is there: inputs "grad:<replica>", which are updated."""
        made = {GRAD + name: leaf(GRAD + name, graph.inputs[name].ty) for name in names if GRAD + name in graph.outputs}
        totals = {key: ops.add(old, graph.outputs[key]) for key, old in made.items()}
        outputs, updates = {**graph.outputs, **totals}, {**graph.updates, **totals}
        return Graph(joined(graph.inputs, made), outputs, updates, graph.origins)

    def _meet(self, graph: Graph) -> Graph:
        """The outputs "grad:<input>" become the gradients by which that input is to be updated."""
        if not self.summed:
            return graph
        owners, residuals = self.owners(graph), {}
        updates, outputs = dict(graph.updates), _without_grads(graph)
        ranks = 1 if self.sharding is not None or self.reduced else self.ranks
        if self.compression is not None:
            found = compressed_sums(owners, self.compression, ranks=ranks, bucket=self.bucket)
            totals, residuals = found.sums, found.residuals
            updates.update(found.kept)
        else:
            totals = {parameter: self._total(grads.values(), ranks) for parameter, grads in owners.items()}
        for parameter, grads in owners.items():
            total = totals[parameter]
            outputs.update({GRAD + name: total for name in ([parameter] if self.once else grads)})
            if not self.once:  # allreduce_grads writes the sum where the gradients were
                updates.update({GRAD + name: total for name in grads if GRAD + name in updates})
        return Graph(joined(graph.inputs, residuals), outputs, updates, graph.origins)

    def _total(self, grads: Iterable[Node], ranks: int) -> Node:
        """Return the sum over replicas and ranks."""
        return ops.allreduce(*grads, ranks=ranks, bucket=self.bucket)

    def _part(self, graph: Graph, parameters: Sequence[str]) -> Graph:
        """The new weights are written to all replicas.

        The kernel that has computed one computes its last step again for each further replica: a value can be
        written in place to one of them only.
        """
        updates = dict(graph.updates)
        for parameter in parameters:
            new, first = graph.updates[parameter], graph.inputs[parameter]
            for number, name in enumerate(self.replicas[parameter][1:], 1):
                if name not in graph.inputs:
                    continue
                if new.op.name == "get_tuple_element":  # of a collective: it is copied
                    updates[name] = new
                elif new.op.over is not None and new.src[new.op.over] is first:  # rows are put into each replica
                    updates[name] = new.on(tuple(graph.inputs[name] if s is first else s for s in new.src))
                else:
                    updates[name] = new if new.op.kind == "leaf" else node(new.op, new.src, new.attrs, number)
        return Graph(graph.inputs, graph.outputs, updates, graph.origins)


def _without_grads(graph: Graph) -> dict[str, Node]:
    return {name: n for name, n in graph.outputs.items() if not name.startswith(GRAD)}
