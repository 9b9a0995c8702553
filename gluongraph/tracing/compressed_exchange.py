"""Sums of compressed gradients in a graph, with residuals among its inputs; and what collectives of a graph send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gluongraph import ops
from gluongraph.eager.function import leaf
from gluongraph.ir.graph import Graph, Node
from gluongraph.kvstore.compression import Compression, quantized, sums_of_sent

RESIDUAL = "residual:"
Owners = Mapping[str, Mapping[str, Node]]  # parameter -> replica -> its gradient


@dataclass(frozen=True)
class CompressedSums:
    """The sums of what is sent, by parameter; the inputs that hold residuals, and their new values."""

    sums: dict[str, Node]
    residuals: dict[str, Node]
    kept: dict[str, Node]


def compressed_sums(owners: Owners, compression: Compression, *, ranks: int = 1, bucket: int = 0) -> CompressedSums:
    """Sum gradients over replicas and ranks, quantized on the way: on each replica, or if the compression is that of
    workers on each rank, which sums its replicas as they are."""
    if not compression.of_workers:
        return _of_devices(owners, compression)
    totals = {parameter: ops.allreduce(*grads.values()) for parameter, grads in owners.items()}
    residuals = {parameter: _residual(parameter, g, compression) for parameter, g in totals.items()}
    given = list(totals.values()), list(residuals.values())
    sums, kept = sums_of_sent(*given, compression, ranks=ranks, bucket=bucket)
    new = dict(zip(totals, kept, strict=True))
    return CompressedSums(dict(zip(totals, sums, strict=True)), _named(residuals), _named(new))


def _of_devices(owners: Owners, compression: Compression) -> CompressedSums:
    sums: dict[str, Node] = {}
    residuals: dict[str, Node | None] = {}
    kept: dict[str, Node | None] = {}
    for parameter, grads in owners.items():
        sent: list[Node] = []
        for name, g in grads.items():
            residuals[name] = _residual(name, g, compression)
            arrived, kept[name] = quantized(g, residuals[name], compression)
            sent.append(arrived)
        sums[parameter] = compression.received(ops.allreduce(*sent))
    return CompressedSums(sums, _named(residuals), _named(kept))


def _residual(name: str, g: Node, compression: Compression) -> Node | None:
    """The input with what has been kept back of a gradient, if anything is."""
    compression.check(name, g.ty)
    return leaf(RESIDUAL + name, g.ty) if compression.keeps_residual else None


def _named(found: Mapping[str, Node | None]) -> dict[str, Node]:
    return {RESIDUAL + name: n for name, n in found.items() if n is not None}


def wire_bytes(graph: Graph) -> int:
    """The bytes that each rank sends in one run of a graph: the payload of its collectives, by algorithms that send the
    least (rings), without headers.

    Of n ranks each sends 2 (n - 1) / n times the bytes of what is summed by all_reduce, (n - 1) / n times those of what
    is summed by reduce_scatter, and n - 1 times its own part by all_gather. A collective within a loop counts once.
    """
    total = 0
    for n in graph.nodes():
        ranks = n.attrs.get("ranks", 1) if n.op.name == "allreduce" or n.op.kind == "collective" else 1
        if ranks == 1:
            continue
        types = n.types[:1] if n.op.name == "allreduce" else [s.ty for s in n.src]  # of the devices' sum
        payload = sum(ty.nbytes for ty in types)
        if n.op.name in ("allreduce", "all_reduce"):
            total += all_reduce_bytes(payload, ranks)
        else:
            total += payload * (ranks - 1) if n.op.name == "all_gather" else -(-payload * (ranks - 1) // ranks)
    return total


def all_reduce_bytes(payload: int, ranks: int) -> int:
    """The bytes that each of so many ranks sends for the sum of a payload that all of them get."""
    return -(-2 * payload * (ranks - 1) // ranks)
