"""Random state: gluongraph's generators, numpy's and Python's."""

from __future__ import annotations

import random as python_random
from functools import partial
from typing import Any

import numpy as np

from gluongraph import random
from gluongraph.checkpoint.part import Groups, Part, Put, Training, misfit
from gluongraph.runtime.checkpoint import Content


def _take(training: Training, groups: Groups) -> Any:
    numpy: Any = np.random.get_state(legacy=False)
    inner = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in numpy["state"].items()}
    version, words, gauss = python_random.getstate()
    return {
        "gluongraph": random.all_states(),
        "numpy": {**numpy, "state": inner},
        "python": [version, list(words), gauss],
    }


def _put(training: Training, content: Content, told: Any) -> Put:
    here: Any = np.random.get_state(legacy=False)
    if "numpy" not in told:  # an artefact, and who trains one without Python, knows gluongraph's alone
        return partial(random.set_all_states, told["gluongraph"])
    if (wanted := told["numpy"]["bit_generator"]) != here["bit_generator"]:
        help = f"numpy.random.set_bit_generator(numpy.random.{wanted}()), before"
        raise misfit(f"numpy.random was drawn by {wanted}, and is by {here['bit_generator']} here", help=help)

    def put() -> None:
        random.set_all_states(told["gluongraph"])
        np.random.set_state(told["numpy"])
        version, words, gauss = told["python"]
        python_random.setstate((version, tuple(words), gauss))

    return put


PART = Part(_take, _put)
