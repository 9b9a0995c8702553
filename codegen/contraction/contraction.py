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
from gluongraph.codegen.contraction.gemm_strategy import Kind, Strategy
from gluongraph.codegen.contraction.microkernel import accumulator, lanes
from gluongraph.codegen.expr.expression import Expressions, as_one, count_as_one, flat, unflatten
from gluongraph.codegen.rule import Bindings, Cpu, Rule
from gluongraph.codegen.tvm.tir import Buf, Expr, Kernel, Value, cast, lanes_of, ramp
from gluongraph.dtypes import DTYPES
from gluongraph.ir.graph import Node
from gluongraph.ir.plan import Candidate, Group
from gluongraph.ops import blocked_layout
from gluongraph.storage import aligned

How = Strategy | int  # loops of vectors; so many blocks in a stripe of AMX tiles


def anchor(group: Group, names: tuple[str, ...], sums: bool = False) -> Node | None:
    """The contraction of a group, if there is exactly one, its operands are inputs of the group, and all results have
    its shape; sums along rows need not where `sums` are welcome."""
    found = [n for n in group.body.nodes() if n.op.name in names]
    if len(found) != 1 or any(s.op.name != "input" for s in found[0].src):
        return None
    shape = found[0].shape
    results = (n for n in group.body.outputs.values() if not (sums and n.op.kind == "reduce"))
    return found[0] if all(n.shape == shape for n in results) else None


def epilogue(
    k: Kernel, group: Group, bindings: Bindings, finished: Node, sums: RowSums | None = None, first: int | None = None
) -> Callable[[tuple[Value, ...], Expr], None]:
    """A function that takes an index and the contraction's value there, and stores the group's outputs. Axes from the
    `first` on, if one is given, count as one: the last of the index is the position along all of them.

    All outputs are computed before the first is stored: one may overwrite what another reads.
    """
    pairs = zip(group.body.outputs.values(), bindings.outputs, strict=True)
    whole = [(n, buf) for n, buf in pairs if sums is None or n is not sums.summed]

    def write(index: tuple[Value, ...], value: Expr) -> None:
        known = k.let(cast(value, "f16") if finished.dtype == "f16" else value)
        expressions = Expressions(k, group, bindings, {finished: lambda *_: known})
        if first is None:
            lanes = vector_index(index, known)
        else:
            lanes = as_one(finished.shape, index[:first], ramp(index[-1], lanes_of(known)))
        results = [expressions.at(n, lanes) for n, _ in whole]
        if sums is not None:
            sums.add(expressions.at(sums.summed.src[0], lanes))
        for (n, buf), result in zip(whole, results, strict=True):
            k.store(buf, result, flat(n.shape, index))

    return write


def vector_index(index: tuple[Value, ...], value: Expr) -> tuple[Value, ...]:
    """The index of all lanes of a value whose first element is at `index`."""
    return (*index[:-1], ramp(index[-1], lanes_of(value)))


def _claim_gemm(group: Group, cpu: Cpu, how: How | None = None) -> Candidate | None:
    if group.pattern != "gemm" or (product := anchor(group, ("matmul",), sums=True)) is None:
        return None
    if min(_extents(product)) < 1:
        return None
    algorithm = _algorithm_of(product, cpu, how)
    workspace = algorithm.workspace
    if (summed := _summed(group)) is not None:
        workspace = aligned(workspace) + epilogue_row_sum.workspace(summed, algorithm.run)
    return Candidate("gemm", workspace, algorithm.tiles)


@dataclass(frozen=True)
class _Way:
    """The emitter of a GEMM, its bytes of workspace, and how many columns of a row it stores in one run."""

    emit: Callable[[Kernel, gemm.Product], None]
    workspace: int
    run: int
    tiles: bool


def _algorithm_of(product: Node, cpu: Cpu, how: How | None) -> _Way:
    """The default algorithm, or that of a tuning variant."""
    extents, kinds = _extents(product), _kinds(product)
    if gemm_amx.is_profitable(*extents, *kinds, cpu):
        long = how if isinstance(how, int) else 0
        workspace, run = gemm_amx.workspace(*extents, *kinds, cpu, long), gemm_amx.run(*extents, *kinds, cpu, long)
        return _Way(partial(gemm_amx.emit, long=long), workspace, run, tiles=True)
    how = how if isinstance(how, Strategy) else gemm_strategy.choose(*extents, *kinds, cpu)
    return _Way(partial(gemm.emit, strategy=how), how.workspace(*extents, cpu), how.width(cpu), tiles=False)


def _gemm_variants(group: Group, cpu: Cpu) -> dict[str, Rule[Cpu]]:
    product = anchor(group, ("matmul",), sums=True)
    assert product is not None
    extents, kinds = _extents(product), _kinds(product)
    algorithms: dict[str, How]
    if gemm_amx.is_profitable(*extents, *kinds, cpu):
        algorithms = {f"stripes of {long} blocks": long for long in gemm_amx.tuning_variants(*extents, *kinds, cpu)}
    else:
        algorithms = {str(how): how for how in gemm_strategy.tuning_variants(*extents, *kinds, cpu)}
    if _summed(group) is not None:  # by runs of columns: with longer or shorter ones they would be other bits
        usual = _algorithm_of(product, cpu, None).run
        algorithms = {name: how for name, how in algorithms.items() if _algorithm_of(product, cpu, how).run == usual}
    return {
        name: Rule("gemm", partial(_claim_gemm, how=how), partial(_emit_gemm, how=how))
        for name, how in algorithms.items()
    }


def _summed(group: Group) -> Node | None:
    """The reduction along rows in the epilogue of a GEMM, if there is one."""
    return next((n for n in group.body.outputs.values() if n.op.kind == "reduce"), None)


def _extents(product: Node) -> tuple[int, int, int, int]:
    """batch, rows, columns of the result, length of the sum."""
    a = product.src[0].shape
    *leading, m, n = product.shape
    return math.prod(leading), m, n, a[-2] if product.attrs["ta"] else a[-1]


def _kinds(product: Node) -> tuple[Kind, Kind]:
    flags = (product.attrs["ta"], product.attrs["tb"])
    left, right = (
        Kind("i" if turned else "j", s.dtype, plain=DTYPES[s.dtype].nbytes >= 4)  # 16 bits are widened, best once
        for s, turned in zip(product.src, flags, strict=True)
    )
    return left, right


def _emit_gemm(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu, how: How | None = None) -> None:
    product = anchor(group, ("matmul",), sums=True)
    assert product is not None
    algorithm = _algorithm_of(product, cpu, how)
    memory = bindings.by_node(group)
    left, right = (
        Operand(_plain(k, memory[s], s, kind.contiguous), kind, memory[s])
        for s, kind in zip(product.src, _kinds(product), strict=True)
    )
    sums: RowSums | None = None
    if (summed := _summed(group)) is not None:
        assert bindings.workspace is not None
        behind = k.view(bindings.workspace, "f32", aligned(algorithm.workspace))
        to = bindings.outputs[list(group.body.outputs.values()).index(summed)]
        sums = RowSums(k, summed, algorithm.run, behind, to, cpu)
    store = epilogue(k, group, bindings, product, sums)
    leading = product.shape[:-2]

    def write(at: Expr, i: Expr, j: Expr, value: Expr) -> None:
        store((*unflatten(at, leading), i, j), value)

    around = sums.around if sums is not None else gemm.alone
    algorithm.emit(k, gemm.Product(*_extents(product), left, right, write, cpu, bindings.workspace, around))
    if sums is not None:
        sums.finish()


def _plain(k: Kernel, buf: Buf, s: Node, contiguous: str) -> Callable[[Value, Value, Value, int], Expr]:
    rows, columns = s.shape[-2:]

    def read(batch: Value, i: Value, j: Value, lanes: int) -> Expr:
        row, column = (i, j) if contiguous == "j" else (j, i)
        return k.load(buf, batch * (rows * columns) + row * columns + column, lanes)

    return read


_PLAIN = ("conv2d", "conv2d_data_grad", "conv2d_weight_grad")
_CONV = (*_PLAIN, *(f"{name}_blocks" for name in _PLAIN))


def _claim_conv(group: Group, cpu: Cpu, algorithm: str = "") -> Candidate | None:
    if group.pattern != "conv" or (product := anchor(group, _CONV)) is None:
        return None
    geometry, dtype, name = geometry_of(product), _operands(product), plain_name(product)
    if geometry.work == 0:
        return None
    if geometry.blocks and (accumulator(dtype) != "f32" or product.src[0].shape[-1] != lanes(cpu, "f32")):
        return None
    whole = name == "conv2d_weight_grad"  # of images in blocks a vector is one pixel
    if (whole or not geometry.blocks) and not flat_tail(group, product, 1 if whole else 2):
        return None
    tiled = conv.uses_tiles(geometry, dtype, cpu)
    if geometry.blocks:
        return Candidate("conv", conv.blocks_workspace(name, geometry, dtype, cpu, algorithm), tiled)
    workspace = {
        "conv2d": conv.forward_workspace,
        "conv2d_data_grad": conv.data_grad_workspace,
        "conv2d_weight_grad": conv.weight_grad_workspace,
    }[name]
    return Candidate("conv", workspace(geometry, dtype, cpu, algorithm), tiled)


def _conv_variants(group: Group, cpu: Cpu) -> dict[str, Rule[Cpu]]:
    product = anchor(group, _CONV)
    assert product is not None
    algorithms = conv.algorithms(plain_name(product), geometry_of(product), _operands(product), cpu)[1:]
    return {
        algorithm: Rule("conv", partial(_claim_conv, algorithm=algorithm), partial(_emit_conv, algorithm=algorithm))
        for algorithm in algorithms
    }


def flat_tail(group: Group, product: Node, first: int) -> bool:
    """May a vector of the product's results run across its axes from `first` on, such as rows of pixels?"""
    return count_as_one((n for n in group.body.nodes() if n is not product), product.shape, first)


def _operands(product: Node) -> str:
    """The dtype of the operands, or what both are cast to."""
    first, second = (s.dtype for s in product.src)
    return first if first == second else accumulator(first, second)


def geometry_of(product: Node) -> Conv:
    """The convolution that a node is, or is a gradient of."""
    name, (first, second), in_blocks = plain_name(product), product.src, product.op.name.endswith("_blocks")
    x = product.shape if name == "conv2d_data_grad" else first.shape
    w = product.shape if name == "conv2d_weight_grad" else second.shape
    a = product.attrs
    n, c, height, width = blocked_layout.plain(x) if in_blocks else x
    how = (a["stride"], a["padding"], a["dilation"], a["groups"])
    return Conv(n, c, height, width, w[0], (w[2], w[3]), *how, blocks=in_blocks)


def plain_name(product: Node) -> str:
    """The op's name without images in blocks."""
    return product.op.name.removesuffix("_blocks")


def _preferred_lanes(n: Node, cpu: Cpu, met: bool) -> int:
    """How many images a convolution wants side by side, by its shapes, where it has `met` some; 0: as they are."""
    if n.op.name not in _PLAIN or math.prod(n.shape) == 0:
        return 0
    return conv.preferred_image_lanes(geometry_of(n), _operands(n), cpu, met)


def _emit_conv(k: Kernel, group: Group, bindings: Bindings, cpu: Cpu, algorithm: str = "") -> None:
    product = anchor(group, _CONV)
    assert product is not None
    geometry, dtype = geometry_of(product), _operands(product)
    memory = bindings.by_node(group)
    first, second = (memory[s] for s in product.src)
    first_of_run = 1 if plain_name(product) == "conv2d_weight_grad" else None if geometry.blocks else 2
    store, workspace = epilogue(k, group, bindings, product, first=first_of_run), bindings.workspace
    assert workspace is not None  # every way to convolve rearranges its operands or results

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

    name = plain_name(product)
    if geometry.blocks:
        write = write_weights if name == "conv2d_weight_grad" else write_images
        conv.emit_in_blocks(k, name, geometry, dtype, first, second, write, cpu, workspace, algorithm)
        return
    read = pixels(first, product.src[0].shape)
    if name == "conv2d_weight_grad":
        g = pixels(second, product.src[1].shape)
        conv.emit_weight_grad(k, geometry, dtype, read, g, write_weights, cpu, workspace, algorithm)
    else:
        emit = conv.emit_forward if name == "conv2d" else conv.emit_data_grad
        emit(k, geometry, dtype, read, weights, write_pixels, cpu, workspace, algorithm)


GEMM = Rule("gemm", _claim_gemm, _emit_gemm, _gemm_variants)
CONV = Rule("conv", _claim_conv, _emit_conv, _conv_variants, preferred_lanes=_preferred_lanes)
