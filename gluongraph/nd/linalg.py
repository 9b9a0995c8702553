"""`mx.nd.linalg`: products, factors, triangles and diagonals of matrices along the last two axes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from gluongraph.eager.tape import STATE
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.mxops import linalg as mxlinalg
from gluongraph.nd.examples import document
from gluongraph.nd.function import function, into, no_such
from gluongraph.ndarray import NDArray


def _refusing(call: Callable[..., NDArray], lacks: str, help: str) -> Callable[..., NDArray]:
    """`call`, which gives NaN for matrices without a result; in eager mode these are an error, as in MXNet.

    Compiled code has NaN, and so have matrices with a NaN in them. `lacks` says what such a matrix is.
    """

    @wraps(call)
    def checked(A: Any, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        made = call(A, *args, **kwargs)
        if STATE.tracer is None and isinstance(A, NDArray):
            _check(A, made)
        return made if out is None else into(out, made)

    def _check(A: NDArray, made: NDArray) -> None:
        bad = np.isnan(made.storage.array).any((-2, -1))
        if bad.any() and (bad := bad & np.isfinite(A.storage.array).all((-2, -1))).any():
            which = f" number {tuple(map(int, np.argwhere(bad)[0]))}" if bad.ndim else ""
            raise MXNetError(
                with_user_location(f"linalg.{call.__name__}: the matrix{which} of {A.type} is {lacks}", help=help)
            )

    return checked


gemm = function(mxlinalg.gemm)
gemm2 = function(mxlinalg.gemm2)
syrk = function(mxlinalg.syrk)
trmm = function(mxlinalg.trmm)
potrf = _refusing(
    function(mxlinalg.potrf), "not positive definite", "add a small number to its diagonal: A + 1e-6 * nd.eye(n)"
)
potri = _refusing(function(mxlinalg.potri), "no triangle that potrf gives", "its diagonal must not have zeros")
trsm = function(mxlinalg.trsm)
inverse = _refusing(function(mxlinalg.inverse), "singular", "look at its rows: some depend on others")
gelqf = function(mxlinalg.gelqf)
syevd = function(mxlinalg.syevd)
det = function(mxlinalg.det)
slogdet = function(mxlinalg.slogdet)
sumlogdiag = function(mxlinalg.sumlogdiag)
extractdiag = function(mxlinalg.extractdiag)
makediag = function(mxlinalg.makediag)
extracttrian = function(mxlinalg.extracttrian)
maketrian = function(mxlinalg.maketrian)

document(__name__, globals())
__getattr__ = no_such(__name__, globals())
