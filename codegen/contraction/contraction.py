"""Kernel rules "gemm" and "conv": a contraction, with the group's elementwise operations as its epilogue."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gluongraph.codegen.contraction import conv, epilogue_row_sum, gemm, gemm_amx, gemm_strategy
from gluongraph.codegen.contraction.conv import Conv
from gluongraph.codegen.contraction.epilogue_row_sum import RowSums
from gluongraph.codegen.contraction.gemm import Operand
from gluongraph.codegen.contraction.gemm_strategy import OperandKind, Strategy
from gluongraph.codegen.contraction.microkernel import accumulator, lanes
from gluongraph.codegen.expr.expression import Expressions, can_flatten_axes, flat, flattened_index, unflatten
from gluongraph.codegen.rule import Bindings, Cpu, Rule
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value, cast, lanes_of, ramp
from gluongraph.dtypes import DTYPES
from gluongraph.ir.graph import Node
from gluongraph.ir.plan import Candidate, Group
from gluongraph.ops import blocked_layout
from gluongraph.storage import aligned

GemmVariant = Strategy | int  # of gemm.py; blocks in a stripe of gemm_amx.py


def anchor(group: Group, names: tuple[str, ...], sums: bool = False) -> Node | None:
    """Return the contraction of a group if there is exactly one, its operands are inputs of the group, and all outputs
    have its shape (row sums excepted if `sums`); else None."""
    contractions = [n for n in group.body.nodes() if n.op.name in names]
    if len(contractions) != 1 or any(s.op.name != "input" for s in contractions[0].src):
        return None
    shape = contractions[0].shape
    results = (n for n in group.body.outputs.values() if not (sums and n.op.kind == "reduce"))
    return contractions[0] if all(n.shape == shape for n in results) else None


def epilogue(
    k: Kernel, group: Group, bindings: Bindings, finished: Node, sums: RowSums | None = None, first: int | None = None
) -> Callable[[tuple[Value, ...], Expr], None]:
    """Return a function that takes an index and the contraction's value there, and stores the group's outputs. Axes
    from `first` on, if it is set, are flattened: the last component of the index is the position along all of them.

    All outputs are computed before the first is stored: one may overwrite what another reads.
    """
    pairs = zip(group.body.outputs.values(), bindings.outputs, strict=True)
    outputs = [(n, buf) for n, buf in pairs if sums is None or n is not sums.summed]

    def write(index: tuple[Value, ...], value: Expr) -> None:
        result = k.let(cast(value, "f16") if finished.dtype == "f16" else value)
        expressions = Expressions(k, group, bindings, {finished: lambda *_: result})
        if first is None:
            lanes = vector_index(index, result)
        else:
            lanes = flattened_index(finished.shape, index[:first], ramp(index[-1], lanes_of(result)))
        stored = [expressions.at(n, lanes) for n, _ in outputs]
        if sums is not None:
            sums.add(expressions.at(sums.summed.src[0], lanes))
        for (n, buf), each in zip(outputs, stored, strict=True):
            k.store(buf, each, flat(n.shape, index))

    return write


def vector_index(index: tuple[Value, ...], value: Expr) -> tuple[Value, ...]:
    """Return the index of all lanes of a value whose first element is at `index`."""
    return (*index[:-1], ramp(index[-1], lanes_of(value)))


def _claim_gemm(group: Group, cpu: Cpu, variant: GemmVariant | None = None) -> Candidate | None:
    if group.pattern != "gemm" or (contraction := anchor(group, ("matmul",), sums=True)) is None:
        return None
    if min(_extents(contraction)) < 1:
        return None
    algorithm = _algorithm_of(contraction, cpu, variant)
    workspace = algorithm.workspace
    if (summed := _summed(group)) is not None:
        workspace = aligned(workspace) + epilogue_row_sum.workspace(summed, algorithm.run_width)
    return Candidate("gemm", workspace, algorithm.tiles)


@dataclass(frozen=True)
class _GemmAlgorithm:
    """The emitter of a GEMM, its bytes of workspace, the columns of a row that it stores in one run, and whether it
    uses tile multiplications."""

    emit: Callable[[Kernel, gemm.Gemm], None]
    workspace: int
    run_width: int
    tiles: bool


def _algorithm_of(contraction: Node, cpu: Cpu, variant: GemmVariant | None) -> _GemmAlgorithm:
    """Return the default algorithm, or that of a tuning variant."""
    extents, kinds = _extents(contraction), _kinds(contraction)
    if gemm_amx.is_profitable(*extents, *kinds, cpu):
        stripe_blocks = variant if isinstance(variant, int) else 0
        workspace, run_width = (
            gemm_amx.workspace(*extents, *kinds, cpu, stripe_blocks),
            gemm_amx.run_width(*extents, *kinds, cpu, stripe_blocks),
        )
        return _GemmAlgorithm(partial(gemm_amx.emit, stripe_blocks=stripe_blocks), workspace, run_width, tiles=True)
    variant = variant if isinstance(variant, Strategy) else gemm_strategy.choose(*extents, *kinds, cpu)
    return _GemmAlgorithm(
        partial(gemm.emit, strategy=variant), variant.workspace(*extents, cpu), variant.width(cpu), tiles=False
    )


def _gemm_variants(group: Group, cpu: Cpu) -> dict[str, Rule[Cpu]]:
    contraction = anchor(group, ("matmul",), sums=True)
    assert contraction is not None
    extents, kinds = _extents(contraction), _kinds(contraction)
    algorithms: dict[str, GemmVariant]
    if gemm_amx.is_profitable(*extents, *kinds, cpu):
        algorithms = {
            f"stripes of {stripe_blocks} blocks": stripe_blocks
            for stripe_blocks in gemm_amx.tuning_variants(*extents, *kinds, cpu)
        }
    else:
        algorithms = {str(variant): variant for variant in gemm_strategy.tuning_variants(*extents, *kinds, cpu)}
    if _summed(group) is not None:  # partial sums are those of runs: another width would change their rounding
        default = _algorithm_of(contraction, cpu, None).run_width
        algorithms = {
            name: variant
            for name, variant in algorithms.items()
            if _algorithm_of(contraction, cpu, variant).run_width == default
        }
    return {
        name: Rule("gemm", partial(_claim_gemm, variant=variant), partial(_emit_gemm, variant=variant))
        for name, variant in algorithms.items()
    }


def _summed(group: Group) -> Node | None:
    """Return the reduction along rows in the epilogue of a GEMM, if there is one."""
    return next((n for n in group.body.outputs.values() if n.op.kind == "reduce"), None)


def _extents(contraction: Node) -> tuple[int, int, int, int]:
    """Return (batch, m, n, k)."""
    a = contraction.src[0].shape
    *leading, m, n = contraction.shape
    return math.prod(leading), m, n, a[-2] if contraction.attrs["ta"] else a[-1]


def _kinds(contraction: Node) -> tuple[OperandKind, OperandKind]:
    """Return the kinds of both operands of a matmul."""
    flags = (contraction.attrs["ta"], contraction.attrs["tb"])
    left, right = (
        OperandKind(
            "i" if transposed else "j", s.dtype, plain=DTYPES[s.dtype].nbytes >= 4
        )  # 16-bit values are converted, best once
        for s, transposed in zip(contraction.src, flags, strict=True)
    )
    return left, right


def _emit_gemm(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu, variant: GemmVariant | None = None) -> None:
    contraction = anchor(group, ("matmul",), sums=True)
    assert contraction is not None
    algorithm = _algorithm_of(contraction, cpu, variant)
    memory = bindings.by_node(group)
    left, right = (
        Operand(_reader(k, memory[s], s, kind.contiguous), kind, memory[s])
        for s, kind in zip(contraction.src, _kinds(contraction), strict=True)
    )
    sums: RowSums | None = None
    if (summed := _summed(group)) is not None:
        assert bindings.workspace is not None
        behind = k.view(bindings.workspace, "f32", aligned(algorithm.workspace))
        to = bindings.outputs[list(group.body.outputs.values()).index(summed)]
        sums = RowSums(k, summed, algorithm.run_width, behind, to, cpu)
    store = epilogue(k, group, bindings, contraction, sums)
    leading = contraction.shape[:-2]

    def write(at: Expr, i: Expr, j: Expr, value: Expr) -> None:
        store((*unflatten(at, leading), i, j), value)

    run_context = sums.run_context if sums is not None else gemm.no_context
    algorithm.emit(k, gemm.Gemm(*_extents(contraction), left, right, write, cpu, bindings.workspace, run_context))
    if sums is not None:
        sums.finish()


def _reader(k: Kernel, buf: Buf, s: Node, contiguous: str) -> Callable[[Value, Value, Value, int], Expr]:
    rows, columns = s.shape[-2:]

    def read(batch: Value, i: Value, j: Value, lanes: int) -> Expr:
        row, column = (i, j) if contiguous == "j" else (j, i)
        return k.load(buf, batch * (rows * columns) + row * columns + column, lanes)

    return read


_NCHW_OPS = ("conv2d", "conv2d_data_grad", "conv2d_weight_grad")
_CONV_OPS = (*_NCHW_OPS, *(f"{name}_blocks" for name in _NCHW_OPS))


def _claim_conv(group: Group, cpu: Cpu, algorithm: str = "") -> Candidate | None:
    if group.pattern != "conv" or (contraction := anchor(group, _CONV_OPS)) is None:
        return None
    geometry, dtype, name = geometry_of(contraction), _operands(contraction), nchw_name(contraction)
    if geometry.work == 0:
        return None
    if geometry.blocks and (accumulator(dtype) != "f32" or contraction.src[0].shape[-1] != lanes(cpu, "f32")):
        return None
    # A vector of results holds one pixel in the NCHWn layout; else it runs along pixels, or along weights.
    of_weights = name == "conv2d_weight_grad"
    if (of_weights or not geometry.blocks) and not trailing_axes_flatten(group, contraction, 1 if of_weights else 2):
        return None
    tiled = conv.uses_tiles(geometry, dtype, cpu)
    if geometry.blocks:
        return Candidate("conv", conv.blocked_workspace(name, geometry, dtype, cpu, algorithm), tiled)
    workspace = {
        "conv2d": conv.forward_workspace,
        "conv2d_data_grad": conv.data_grad_workspace,
        "conv2d_weight_grad": conv.weight_grad_workspace,
    }[name]
    return Candidate("conv", workspace(geometry, dtype, cpu, algorithm), tiled)


def _conv_variants(group: Group, cpu: Cpu) -> dict[str, Rule[Cpu]]:
    contraction = anchor(group, _CONV_OPS)
    assert contraction is not None
    algorithms = conv.algorithms(nchw_name(contraction), geometry_of(contraction), _operands(contraction), cpu)[1:]
    return {
        algorithm: Rule("conv", partial(_claim_conv, algorithm=algorithm), partial(_emit_conv, algorithm=algorithm))
        for algorithm in algorithms
    }


def trailing_axes_flatten(group: Group, contraction: Node, first: int) -> bool:
    """Can the epilogue be computed with the result's axes from `first` on flattened, such as rows of pixels?"""
    return can_flatten_axes((n for n in group.body.nodes() if n is not contraction), contraction.shape, first)


def _operands(contraction: Node) -> str:
    """Return the dtype of the operands, or what both are cast to."""
    first, second = (s.dtype for s in contraction.src)
    return first if first == second else accumulator(first, second)


def geometry_of(contraction: Node) -> Conv:
    """Return the shapes of the convolution that a node is, or is a gradient of."""
    name, (first, second), in_blocks = nchw_name(contraction), contraction.src, contraction.op.name.endswith("_blocks")
    x = contraction.shape if name == "conv2d_data_grad" else first.shape
    w = contraction.shape if name == "conv2d_weight_grad" else second.shape
    a = contraction.attrs
    n, c, height, width = blocked_layout.plain(x) if in_blocks else x
    variant = (a["stride"], a["padding"], a["dilation"], a["groups"])
    return Conv(n, c, height, width, w[0], (w[2], w[3]), *variant, blocks=in_blocks)


def nchw_name(contraction: Node) -> str:
    """Return the op's name without the suffix of the NCHWn layout."""
    return contraction.op.name.removesuffix("_blocks")


def _preferred_lanes(n: Node, cpu: Cpu, source_is_blocked: bool) -> int:
    """Return how many images a convolution wants interleaved in memory (NCHWn), by its shapes; 0: NCHW. In the NCHW
    layout a 1x1 convolution is as fast, unless `source_is_blocked`."""
    if n.op.name not in _NCHW_OPS or math.prod(n.shape) == 0:
        return 0
    return conv.preferred_image_lanes(geometry_of(n), _operands(n), cpu, source_is_blocked)


def _emit_conv(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu, algorithm: str = "") -> None:
    contraction = anchor(group, _CONV_OPS)
    assert contraction is not None
    geometry, dtype = geometry_of(contraction), _operands(contraction)
    memory = bindings.by_node(group)
    first, second = (memory[s] for s in contraction.src)
    first_of_run = 1 if nchw_name(contraction) == "conv2d_weight_grad" else None if geometry.blocks else 2
    store, workspace = epilogue(k, group, bindings, contraction, first=first_of_run), bindings.workspace
    assert workspace is not None  # every algorithm packs operands or unpacks results

    def pixels(buf: Buf, shape: tuple[int, ...]) -> Callable[[Value, Value, Value, int], Expr]:
        channels, size = shape[1], shape[2] * shape[3]
        return lambda n, c, p, lanes: k.load(buf, (n * channels + c) * size + p, lanes)

    def weights(o: Value, q: Value, lanes: int) -> Expr:
        return k.load(second, o * geometry.q + q, lanes)

    def write_pixels(n: Expr, c: Expr, p: Expr, value: Expr) -> None:
        store((n, c, 0, p), value)  # the position is that of (n, c, p // width, p % width)

    def write_weights(o: Expr, q: Expr, value: Expr) -> None:
        store((o, 0, 0, q), value)

    def write_images(b: Expr, c: Expr, row: Expr, column: Expr, value: Expr) -> None:
        store((b, c, row, column, 0), value)

    name = nchw_name(contraction)
    if geometry.blocks:
        write = write_weights if name == "conv2d_weight_grad" else write_images
        conv.emit_blocked(k, name, geometry, dtype, first, second, write, cpu, workspace, algorithm)
        return
    read = pixels(first, contraction.src[0].shape)
    if name == "conv2d_weight_grad":
        g = pixels(second, contraction.src[1].shape)
        conv.emit_weight_grad(k, geometry, dtype, read, g, write_weights, cpu, workspace, algorithm)
    else:
        emit = conv.emit_forward if name == "conv2d" else conv.emit_data_grad
        emit(k, geometry, dtype, read, weights, write_pixels, cpu, workspace, algorithm)


GEMM = Rule("gemm", _claim_gemm, _emit_gemm, _gemm_variants)
CONV = Rule("conv", _claim_conv, _emit_conv, _conv_variants, preferred_lanes=_preferred_lanes)
