"""MXNet's side of parity_mxnet.py, for an interpreter that has MXNet 1.9.1 and not gluongraph.

python mxnet_peer.py FOLDER        # reads cases.json and <case>.npz there, writes <case>.out.npz
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import mxnet as mx  # noqa: E402 - it reads the environment, and warns, when it is imported
import numpy as np  # noqa: E402 - MXNet imports it

MASTER_LAST = ("sgd", "ccsgd", "nag", "lars")  # state = (inner, master); elsewhere (master, inner)


def made(case: dict[str, Any]) -> Any:
    """The optimizer of a case, with its scheduler."""
    arguments = dict(case["arguments"])
    if case["scheduler"] is not None:
        given = dict(case["scheduler"])
        arguments["lr_scheduler"] = getattr(mx.lr_scheduler, given.pop("name"))(**given)
    return mx.optimizer.create(case["optimizer"], **arguments)


def run(case: dict[str, Any], given: Any) -> dict[str, Any]:
    """The weights after each update; of SGLD also its noise, drawn once more."""
    optimizer, dtype = made(case), case["dtype"]
    updater = mx.optimizer.get_updater(optimizer)
    indices = list(range(case["parameters"]))
    weights = [mx.nd.array(given[f"w{i}"], dtype=dtype) for i in indices]
    results = {}
    for t in range(case["steps"]):
        grads = [mx.nd.array(given[f"g{t}_{i}"], dtype=dtype) for i in indices]
        mx.random.seed(t)
        if len(indices) > 1:
            updater(list(indices), grads, weights)
        else:  # one by itself, not as a list of one, which is another way through LAMB
            updater.states.setdefault(0, optimizer.create_state_multi_precision(0, weights[0]))
            optimizer.update_multi_precision(0, weights[0], grads[0], updater.states[0])
        for i, w in enumerate(weights):
            if dtype == "float16":
                w = updater.states[i][1 if case["optimizer"] in MASTER_LAST else 0]
            results[f"w{t}_{i}"] = w.asnumpy()
        mx.random.seed(t)
        for i, w in enumerate(weights if case["optimizer"] == "sgld" else []):
            spread = float(np.sqrt(optimizer._get_lr(i)))
            results[f"noise{t}_{i}"] = mx.nd.random.normal(0, spread, shape=w.shape, dtype=dtype).asnumpy()
    return results


def main(folder: str) -> None:
    """All cases; a failure is told as text."""
    with open(os.path.join(folder, "cases.json")) as file:
        cases = json.load(file)
    for number, case in enumerate(cases):
        with np.load(os.path.join(folder, f"{number}.npz")) as given:
            try:
                results = run(case, given)
            except Exception as error:
                text = str(error).strip().splitlines()
                results = {"error": np.array(f"{type(error).__name__}: {text[0] if text else ''}")}
        np.savez(os.path.join(folder, f"{number}.out.npz"), **results)


if __name__ == "__main__":
    main(sys.argv[1])
