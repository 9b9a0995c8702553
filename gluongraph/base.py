"""`mx.base`: the types that scripts compare with."""

from __future__ import annotations

import numpy as np

from gluongraph.errors import MXNetError as MXNetError

numeric_types = (float, int, np.generic)
integer_types = (int, np.int32, np.int64)
string_types = (str,)
mx_real_t = np.float32
