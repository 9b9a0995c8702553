"""The table of ATen's operators: for each overload the builder that makes it of nodes.

A builder takes an `OpContext` and then what the overload takes, in ATen's order and by ATen's names: tensors are nodes;
numbers, lists and texts are Python's; sizes that depend on a free axis are numbers by then. Arguments that say where
and how memory lies (`PLACEMENT`) are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gluongraph.errors import ArgumentError, with_user_location

Builder = Callable[..., Any]
B = TypeVar("B", bound=Builder)

TABLE: dict[str, Builder] = {}
ATEN = "aten."
PLACEMENT = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "requires_grad"})
# What checks sizes and values that torch.export has assumed; the block checks its inputs itself.
IGNORED = frozenset(
    {
        "aten._assert_async.msg",
        "aten._assert_scalar.default",
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)
# What cannot be part of a graph of fixed shapes: why, and the way out.
_ELEMENT = ("the Python code asks for an element of an array", "torch.cond for a branch, torch.where for a choice")
_SIZE = ("the shape of its result depends on the elements", "torch.where, or a mask that is multiplied with")
_PACKED = ("packed sequences, whose sizes are data", "give padded sequences, and mask what lies behind their ends")
_BACKWARDS = (
    "_adaptive_avg_pool2d_backward", "avg_pool2d_backward", "convolution_backward", "embedding_dense_backward",
    "max_pool2d_with_indices_backward", "native_group_norm_backward", "native_layer_norm_backward",
)  # fmt: skip
_FACTORIZATIONS = (
    "linalg_svd", "_linalg_svd", "linalg_svdvals", "linalg_pinv", "pinverse", "linalg_eig", "linalg_eigvals",
    "linalg_lu", "linalg_lu_factor", "linalg_lu_factor_ex", "linalg_lu_solve", "lu_solve", "geqrf", "ormqr",
    "linalg_householder_product", "linalg_lstsq", "linalg_matrix_exp", "matrix_exp", "linalg_ldl_factor",
)  # fmt: skip
_TRANSFORMS = (
    "fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn",
    "irfftn",
)  # fmt: skip
_STRIDES = ("it depends on how elements lie in memory", "view, permute, select, unfold")
_BACKWARD = ("it is part of a backward pass, which is made here", "trace the forward pass alone")
_COMPLEX = ("there are no complex numbers", "products with matrices of cosines and sines")
_FACTORS = ("there is no such factorization", "linalg.eigh, linalg.qr, linalg.cholesky, linalg.solve")
_WINDOWS = ("its windows are drawn at random", "max pooling with a stride")
_LOOP = ("how often it runs depends on data", "torch._higher_order_ops.scan over a fixed number, with torch.where")
_FLEX = ("its mask is a program over indices", "scaled_dot_product_attention with the mask as an array")
REFUSED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("aten.item.default", "aten._local_scalar_dense.default", "aten.equal.default"), _ELEMENT),
    **dict.fromkeys(("aten.nonzero.default", "aten.masked_select.default", "aten._unique2.default"), _SIZE),
    **dict.fromkeys(("aten.unique_consecutive.default", "aten.unique_dim.default", "aten.bincount.default"), _SIZE),
    **dict.fromkeys(("aten.repeat_interleave.Tensor",), _SIZE),
    **dict.fromkeys((f"aten.{name}.data" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")), _PACKED),
    "aten._pack_padded_sequence.default": _PACKED,
    **dict.fromkeys((f"aten.as_strided{name}.default" for name in ("", "_copy", "_scatter")), _STRIDES),
    **dict.fromkeys(("aten.sym_stride.int", "aten.sym_storage_offset.default"), _STRIDES),
    **dict.fromkeys((f"aten.{name}.default" for name in _BACKWARDS), _BACKWARD),
    **dict.fromkeys(("aten._fft_c2c.default", "aten._fft_c2r.default", "aten._fft_r2c.default"), _COMPLEX),
    **dict.fromkeys((f"aten.fft_{name}.default" for name in _TRANSFORMS), _COMPLEX),
    **dict.fromkeys(("aten.stft.default", "aten.istft.default", "aten.view_as_complex.default"), _COMPLEX),
    **dict.fromkeys(("aten.complex.default", "aten.polar.default", "aten.view_as_real.default"), _COMPLEX),
    **dict.fromkeys((f"aten.{name}.default" for name in _FACTORIZATIONS), _FACTORS),
    **dict.fromkeys(("aten.fractional_max_pool2d.default", "aten.fractional_max_pool3d.default"), _WINDOWS),
    "higher_order.while_loop": _LOOP,
    "higher_order.flex_attention": _FLEX,
}


def aten(*overloads: str) -> Callable[[B], B]:
    """The decorated builder as that of these overloads of ATen's, `"add.Tensor"`."""

    def add(build: B) -> B:
        for overload in overloads:
            TABLE[ATEN + overload] = build
        return build

    return add


def operator(name: str) -> Callable[[B], B]:
    """The decorated builder as the meaning of a custom operator of PyTorch's, `"mylib::scale"` (its default overload).

    The builder takes a context, then what the operator takes: tensors as nodes of `gluongraph.ops`. Its gradient is
    that of the nodes.

    Raises:
        ArgumentError: no name of the form "library::operator".

    >>> import gluongraph as mx
    >>> from gluongraph import ops
    >>> @mx.torch.operator("mylib::scale")
    ... def scale(at, x, factor):
    ...     return ops.mul(x, factor)
    """
    library, _, rest = name.partition("::")
    if not library or not rest:
        message = f"operator: {name!r} is no name of a custom operator"
        raise ArgumentError(with_user_location(message, help='as torch.library has it: "mylib::scale"'))
    overload = rest if "." in rest else f"{rest}.default"

    def add(build: B) -> B:
        TABLE[f"{library}.{overload}"] = build
        return build

    return add
