"""`mx.test_utils`: what training scripts and tests of Gluon code take from there.

Data from local files, random arrays, comparisons, statistical tests of generators, gradients against finite
differences. `from mxnet.test_utils import *` brings what it brings in MXNet, `np`, `os` and others among it.
"""

import bz2
import errno
import gzip
import json
import logging
import numbers
import os
import platform
import struct
import sys
import time
import traceback
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import numpy.random as rnd
import numpy.testing as npt

import gluongraph as mx
from gluongraph.context import Context, current_context
from gluongraph.errors import with_user_location
from gluongraph.nd import array
from gluongraph.symbol import Symbol
from gluongraph.test_utils.arrays import (
    assign_each,
    assign_each2,
    collapse_sum_like,
    create_2d_tensor,
    create_vector,
    default_context,
    default_dtype,
    list_gpus,
    new_matrix_with_real_eigvals_2d,
    new_matrix_with_real_eigvals_nd,
    new_orthonormal_matrix_2d,
    new_sym_matrix_with_real_eigvals_2d,
    new_sym_matrix_with_real_eigvals_nd,
    np_reduce,
    rand_coord_2d,
    rand_ndarray,
    rand_shape_2d,
    rand_shape_3d,
    rand_shape_nd,
    random_arrays,
    random_sample,
    random_uniform_arrays,
    set_default_context,
)
from gluongraph.test_utils.compare import (
    almost_equal,
    assert_allclose,
    assert_almost_equal,
    assert_almost_equal_ignore_nan,
    assert_almost_equal_with_err,
    compare_ndarray_tuple,
    default_atols,
    default_numeric_eps,
    default_rtols,
    effective_dtype,
    get_atol,
    get_etol,
    get_rtol,
    get_tolerance,
    get_tols,
    same,
    same_array,
)
from gluongraph.test_utils.data import DummyIter, download, get_cifar10, get_mnist, get_mnist_iterator, get_mnist_ubyte
from gluongraph.test_utils.generators import (
    chi_square_check,
    gen_buckets_probs_with_ppf,
    mean_check,
    var_check,
    verify_generator,
)
from gluongraph.test_utils.gradients import check_numeric_gradient
from gluongraph.test_utils.optimizers import compare_optimizer
from gluongraph.test_utils.process import (
    assert_exception,
    discard_stderr,
    environment,
    has_tvm_ops,
    is_aarch64_run,
    is_cd_run,
    is_op_runnable,
    retry,
)
from gluongraph.util import getenv, setenv, use_np

_CHECKS = "compare with numpy, or gradients with check_numeric_gradient; graphs have no symbols to bind"
# Names that MXNet has and that are not here, with what to do instead.
REFUSED = {
    "check_consistency": "call the block on each device and compare with assert_almost_equal",
    "check_gluon_hybridize_consistency": "call the block, hybridize it, call it again and compare",
    "check_speed": "time the step; `step.profile` tells each kernel's share",
    "check_symbolic_backward": _CHECKS,
    "check_symbolic_forward": _CHECKS,
    "create_sparse_array": "there are no sparse arrays; rand_ndarray makes dense ones",
    "create_sparse_array_zd": "there are no sparse arrays; rand_ndarray makes dense ones",
    "download_model": "build the model from gluon.model_zoo and load its parameters from a local file",
    "get_bz2_data": "download the file with gluon.utils.download and open it with bz2",
    "get_mnist_pkl": "get_mnist() reads the idx files",
    "get_zip_data": "download the file with gluon.utils.download and open it with zipfile",
    "numeric_grad": "check_numeric_gradient compares a gradient with finite differences",
    "rand_sparse_ndarray": "there are no sparse arrays; rand_ndarray makes dense ones",
    "shuffle_csr_column_indices": "there are no sparse arrays",
    "simple_forward": _CHECKS,
}


def _refused(name: str, advice: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(with_user_location(f"mx.test_utils.{name} does not exist in gluongraph", help=advice))

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Raises NotImplementedError: {advice}."
    return refuse


globals().update({name: _refused(name, advice) for name, advice in REFUSED.items()})  # imported, if not used

__all__ = [
    "Context",
    "DummyIter",
    "OrderedDict",
    "Symbol",
    "almost_equal",
    "array",
    "assert_allclose",
    "assert_almost_equal",
    "assert_almost_equal_ignore_nan",
    "assert_almost_equal_with_err",
    "assert_exception",
    "assign_each",
    "assign_each2",
    "bz2",
    "check_numeric_gradient",
    "chi_square_check",
    "collapse_sum_like",
    "compare_ndarray_tuple",
    "compare_optimizer",
    "contextmanager",
    "create_2d_tensor",
    "create_vector",
    "current_context",
    "default_atols",
    "default_context",
    "default_dtype",
    "default_numeric_eps",
    "default_rtols",
    "discard_stderr",
    "download",
    "effective_dtype",
    "environment",
    "errno",
    "gen_buckets_probs_with_ppf",
    "get_atol",
    "get_cifar10",
    "get_etol",
    "get_mnist",
    "get_mnist_iterator",
    "get_mnist_ubyte",
    "get_rtol",
    "get_tolerance",
    "get_tols",
    "getenv",
    "gzip",
    "has_tvm_ops",
    "is_aarch64_run",
    "is_cd_run",
    "is_op_runnable",
    "json",
    "list_gpus",
    "logging",
    "mean_check",
    "mx",
    "new_matrix_with_real_eigvals_2d",
    "new_matrix_with_real_eigvals_nd",
    "new_orthonormal_matrix_2d",
    "new_sym_matrix_with_real_eigvals_2d",
    "new_sym_matrix_with_real_eigvals_nd",
    "np",
    "np_reduce",
    "npt",
    "numbers",
    "os",
    "platform",
    "rand_coord_2d",
    "rand_ndarray",
    "rand_shape_2d",
    "rand_shape_3d",
    "rand_shape_nd",
    "random_arrays",
    "random_sample",
    "random_uniform_arrays",
    "retry",
    "rnd",
    "same",
    "same_array",
    "set_default_context",
    "setenv",
    "struct",
    "sys",
    "time",
    "traceback",
    "use_np",
    "var_check",
    "verify_generator",
    "zipfile",
    *REFUSED,
]
