"""Sharded updates: every rank updates its part of the parameters, with the optimizer states of that part alone.

The parameters of a bucket lie one after another in flat memory, of which each rank has one shard. Gradients are summed
by `reduce_scatter`, which gives a rank the sums for its shard; the optimizer's formula is applied to the shard as if it
were one parameter; `all_gather` puts the new shards together. (Rajbhandari et al.: ZeRO, 2020; with `gathers`
parameters are sharded as well. Zhao et al.: PyTorch FSDP, 2023.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from gluongraph import ops
from gluongraph.context import Context
from gluongraph.eager.function import leaf
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.ir.graph import Graph, Node, TensorType, topological
from gluongraph.ir.rewrite import rebuild
from gluongraph.ops.collective import shard_size
from gluongraph.optimizer import Optimizer
from gluongraph.optimizer.base import computed_in
from gluongraph.tracing.optimizer_updates import GRAD, Draws, ScalarTable, apply_updates, joined

STRATEGIES = ("zero1", "zero2", "fsdp")
NO_REPLICAS: Mapping[str, Sequence[str]] = {}


@dataclass(frozen=True)
class Bucket:
    """Parameters that lie one after another, of one dtype and with equal scalars: their names, types and indices.

    `name` is the graph input that holds this rank's shard of them.
    """

    name: str
    parameters: tuple[str, ...]
    types: tuple[TensorType, ...]
    indices: tuple[int, ...]

    def shard(self, ranks: int) -> TensorType:
        """The type of a rank's shard."""
        return TensorType((shard_size(self.types, ranks),), self.types[0].dtype)


@dataclass(frozen=True)
class Sharding:
    """The buckets of all parameters. With `gathers` only shards of parameters are kept: they are gathered where they
    are read. `bytes` is the least size of a bucket that is communicated while others are computed; 0: no overlap."""

    buckets: tuple[Bucket, ...]
    ranks: int
    gathers: bool = False
    bytes: int = 0

    @property
    def parameters(self) -> frozenset[str]:
        """The names of all sharded parameters."""
        return frozenset(name for bucket in self.buckets for name in bucket.parameters)

    def update(
        self,
        graph: Graph,
        optimizer: Optimizer,
        *,
        draws: Draws,
        context: Context,
        clip: Callable[[Graph], Graph] | None,
    ) -> tuple[Graph, ScalarTable]:
        """Replace the outputs "grad:<parameter>", sums over the devices of this rank, by updates of the parameters.

        Raises:
            MXNetError: a parameter has no gradient among the outputs.
        """
        graph = self._scattered(graph)
        graph = graph if clip is None else clip(graph)
        members = {bucket.name: bucket.indices for bucket in self.buckets}
        graph, table = apply_updates(graph, optimizer, members, draws=draws, context=context)
        if self.gathers:
            return graph, table
        updates = dict(graph.updates)
        for bucket in self.buckets:
            shapes = tuple(ty.shape for ty in bucket.types)
            shard = _last(updates.pop(bucket.name), bucket, updates)
            whole = ops.all_gather(shard, ranks=self.ranks, shapes=shapes)
            updates |= dict(zip(bucket.parameters, whole, strict=True))
        return Graph(graph.inputs, graph.outputs, updates, graph.origins), table

    def _scattered(self, graph: Graph) -> Graph:
        """Return the graph with this rank's shards of the summed gradients in place of the gradients."""
        outputs = {name: n for name, n in graph.outputs.items() if not name.startswith(GRAD)}
        shards: dict[str, Node] = {}
        for bucket in self.buckets:
            if missing := [name for name in bucket.parameters if GRAD + name not in graph.outputs]:
                message = f"a sharded update is of all parameters, and there is no gradient of {', '.join(missing)}"
                raise MXNetError(with_user_location(message, help='set grad_req = "null" for parameters without one'))
            grads = [graph.outputs[GRAD + name] for name in bucket.parameters]
            shards[bucket.name] = leaf(bucket.name, bucket.shard(self.ranks))
            outputs[GRAD + bucket.name] = ops.reduce_scatter(*grads, ranks=self.ranks)
        return Graph(joined(graph.inputs, shards), outputs, graph.updates, graph.origins)


def masked(graph: Graph, flag: Node, sharding: Sharding | None, always: Collection[str] = ()) -> Graph:
    """Return the graph with updates only if a flag is true, but for some of them. Parameters that are gathered from new
    shards are chosen before that, as shards."""

    def chosen(name: str, new: Node) -> Node:
        return new if name in always else ops.where(flag, new, graph.inputs[name])

    gathers = final_gathers(graph, sharding)
    later = reached(graph, gathers)
    early = {name: chosen(name, new) for name, new in graph.updates.items() if new not in later}
    new_of = {
        gather: gather.on((_last(chosen(bucket.name, _waiting(gather.src[0])), bucket, early),))
        for gather, bucket in gathers.items()
    }
    made = rebuild(graph, lambda n: new_of.get(n, n)) if new_of else graph
    updates = {
        name: early[name] if name in early else new if _element_of(new) in new_of.values() else chosen(name, new)
        for name, new in made.updates.items()
    }
    return made.with_results(made.outputs, updates)


def reached(graph: Graph, starts: Collection[Node]) -> set[Node]:
    """Return these nodes and all that depend on them."""
    found = set(starts)
    for n in graph.nodes():
        if not found.isdisjoint(n.src):
            found.add(n)
    return found


def _last(new: Node, bucket: Bucket, updates: Mapping[str, Node]) -> Node:
    """Return a new shard whose readers wait for the other updates that read the old one. It is a part of the memory of
    the parameters, which a graph does not know: they are written when nothing reads it any more."""
    states = [n for name, n in updates.items() if name.startswith(f"{bucket.name}/") and n.op.kind != "leaf"]
    return ops.depends_on(new, *states) if states else new


def _waiting(n: Node) -> Node:
    """Return what a node is that `_last` has returned."""
    return n.src[0] if n.op.name == "depends_on" else n


def final_gathers(graph: Graph, sharding: Sharding | None) -> dict[Node, Bucket]:
    """Return the collectives that put new parameters together, and what they are of."""
    if sharding is None or sharding.gathers:
        return {}
    firsts = {bucket: graph.updates.get(bucket.parameters[0]) for bucket in sharding.buckets}
    return {gather: bucket for bucket, new in firsts.items() if new is not None and (gather := _element_of(new))}


def _element_of(n: Node) -> Node | None:
    """Return the node with several results of which this is one."""
    return n.src[0] if n.op.name == "get_tuple_element" else None


def is_elementwise(optimizer: Optimizer, dtype: str) -> bool:
    """Does each formula compute each element of a parameter from that element's gradient and states alone?"""
    if optimizer._is_elementwise is not None:
        return optimizer._is_elementwise
    return all(_is_elementwise(member, dtype) for member in optimizer.members)


def _is_elementwise(optimizer: Optimizer, dtype: str) -> bool:
    ty = TensorType((2, 4), dtype)
    w, g = leaf("w", ty), leaf("g", ty)
    state = {name: leaf(name, t) for name, t in optimizer.state_types(ty).items()}
    if any(t.shape != ty.shape for t in optimizer.state_types(ty).values()):
        return False
    with optimizer.undone():
        optimizer.count((0,))
        scalars = optimizer.scalars(0)
    s: dict[str, Node] = {name: leaf(f"s:{name}", TensorType((), computed_in(dtype))) for name in scalars}
    if optimizer.draws:
        return False
    new, states = optimizer.updated(w, g, state, s)
    kinds = {n.op.kind for n in topological([new, *states.values()])}
    return kinds <= {"leaf", "elementwise", "movement"}


def gathered(
    graph: Graph, sharding: Sharding, forward: Collection[str], replicas: Mapping[str, Sequence[str]] = NO_REPLICAS
) -> Graph:
    """Return the graph with parameters gathered from shards where they are read: in the forward, and again for the
    gradients, so that they need not be kept in between.

    `forward` are the outputs and updates that do not depend on gradients. `replicas`: parameter -> the inputs that
    hold it, one for each context, which all read what is gathered.
    """
    results = {**graph.outputs, **graph.updates}
    early = set(topological(results[name] for name in forward if name in results))
    return _Gathering(graph, sharding, early, replicas).run()


class _Gathering:
    """Rebuilds a graph with gathered parameters. `early` are the nodes of the forward."""

    def __init__(self, graph: Graph, sharding: Sharding, early: set[Node], replicas: Mapping[str, Sequence[str]]):
        self.graph, self.ranks, self.early = graph, sharding.ranks, early
        self.inputs = dict(graph.inputs)
        self.bucket_of: dict[Node, Bucket] = {}
        self.parameter_of: dict[Node, str] = {}
        for bucket in sharding.buckets:
            for parameter in bucket.parameters:
                for name in replicas.get(parameter, (parameter,)):
                    if (read := self.inputs.pop(name, None)) is not None:
                        self.bucket_of[read], self.parameter_of[read] = bucket, parameter
            if bucket in self.bucket_of.values():
                self.inputs.setdefault(bucket.name, leaf(bucket.name, bucket.shard(self.ranks)))
        self.new: dict[Node, Node] = {}
        self.gathers: dict[tuple[str, bool], dict[str, Node]] = {}  # (bucket, in the forward?) -> parameters

    def run(self) -> Graph:
        """Return the graph."""
        graph, origins = self.graph, dict(self.graph.origins)
        for n in graph.nodes():
            if n not in self.bucket_of:
                self.new[n] = n.on(tuple(self._source(s, n) for s in n.src))
                if n in graph.origins:
                    origins[self.new[n]] = graph.origins[n]
        outputs = {name: self._source(n, n) for name, n in graph.outputs.items()}
        updates = {name: self._source(n, n) for name, n in graph.updates.items()}
        return Graph(self.inputs, outputs, updates, origins)

    def _source(self, s: Node, reader: Node) -> Node:
        """Return what a reader reads for s."""
        if (bucket := self.bucket_of.get(s)) is None:
            return self.new[s]
        early = reader in self.early or reader is s
        if (parameters := self.gathers.get((bucket.name, early))) is None:
            shard = self.inputs[bucket.name]
            if not early:  # the second gather waits for the first gradient that meets one of the parameters
                after = (
                    self.new[x] for x in reader.src if x in self.new and x.op.kind != "leaf" and x not in self.early
                )
                shard = ops.depends_on(shard, *after)
            whole = ops.all_gather(shard, ranks=self.ranks, shapes=tuple(ty.shape for ty in bucket.types))
            parameters = self.gathers[bucket.name, early] = dict(zip(bucket.parameters, whole, strict=True))
        return parameters[self.parameter_of[s]]
