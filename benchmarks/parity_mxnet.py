"""Every optimizer against the real MXNet 1.9.1: the same weights and gradients, five updates, the largest difference.

python benchmarks/parity_mxnet.py --mxnet-python /path/to/an/environment/bin/python

MXNet needs an environment of its own: Python 3.11 with `pip install mxnet==1.9.1 'numpy<1.24'`. GG_MXNET_PYTHON may
name its interpreter instead of the argument. Differences are of max|w|; those on purpose are told with their reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gluongraph import lr_scheduler, nd, optimizer

PEER = Path(__file__).with_name("mxnet_peer.py")
TOLERANCE = 1e-5
SHAPES = ((4, 5), (3, 7))
STEPS = 5
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One optimizer with its arguments; `differs` is why the two sides do not agree on purpose."""

    optimizer: str
    arguments: dict[str, Any] = field(default_factory=dict)
    scheduler: dict[str, Any] | None = None
    dtype: str = "float32"
    parameters: int = 2
    steps: int = STEPS
    scale: float = 1.0  # of the weights
    differs: str = ""

    def __str__(self) -> str:
        own = {k: v for k, v in self.arguments.items() if k not in COMMON or COMMON[k] != v}
        told = [f"{k}={v}" for k, v in own.items() if k != "multi_precision"]
        told += [self.scheduler["name"]] if self.scheduler else []
        return f"{self.optimizer}({', '.join(told)})" + (" float16" if self.dtype != "float32" else "")


COMMON = {"learning_rate": 0.05, "wd": 0.01, "clip_gradient": 0.6, "rescale_grad": 0.5}
HALVING = {"name": "FactorScheduler", "step": 2, "factor": 0.5, "base_lr": 0.05}
LARGE_BATCH = {"momentum": 0.9, "batch_scale": 2, "updates_per_epoch": 2, "warmup_epochs": 3}

# Own arguments of each optimizer; all have rate, decay, active clipping and rescaling beside them.
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sgd", {}),
    ("sgd", {"momentum": 0.9}),
    ("ccsgd", {"momentum": 0.9}),
    ("nag", {}),
    ("nag", {"momentum": 0.9, "wd": 0.0}),
    ("signum", {"wd_lh": 0.02}),
    ("signum", {"momentum": 0.0}),
    ("dcasgd", {"lamda": 0.5}),
    ("lars", {"momentum": 0.9, "eta": 0.1}),
    ("lars", {"eta": 0.1, "eps": 1e-3}),
    ("lbsgd", LARGE_BATCH),
    ("lbsgd", {**LARGE_BATCH, "warmup_strategy": "power2"}),
    ("lbsgd", {**LARGE_BATCH, "warmup_strategy": "sqrt", "begin_epoch": 1}),
    ("lbsgd", {"momentum": 0.9, "warmup_strategy": "lars", "batch_scale": 2}),
    ("lamb", {}),
    ("lamb", {"bias_correction": False, "lower_bound": 1.0, "upper_bound": 3.0}),
    ("adam", {}),
    ("adam", {"beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3}),
    ("adamax", {}),
    ("adagrad", {}),
    ("groupadagrad", {"wd": 0.0}),
    ("rmsprop", {}),
    ("rmsprop", {"centered": True, "gamma2": 0.8, "clip_weights": 1.2}),
    ("adadelta", {}),
    ("ftrl", {"lamda1": 0.05}),
    ("ftml", {}),
    ("test", {}),
)
MIXED = ("sgd", "nag", "signum", "dcasgd", "lbsgd", "adam", "adamax", "adagrad", "rmsprop", "adadelta", "ftrl", "ftml")


def cases() -> list[Case]:
    """All that is compared."""
    made = [Case(name, {**COMMON, **own}) for name, own in VARIANTS]
    made += [Case(name, {"wd": 0.0}) for name, own in VARIANTS if not own]  # default rates and settings
    made += [Case(name, {**COMMON, **own}, parameters=1) for name, own in VARIANTS if name == "lamb"]
    made.append(Case("nadam", COMMON, parameters=1))
    made.append(Case("sgld", COMMON, steps=1))
    for name, own in (("sgd", {"momentum": 0.9}), ("lars", {"momentum": 0.9, "eta": 0.1}), ("ftml", {})):
        given = {k: v for k, v in {**COMMON, **own}.items() if k != "learning_rate"}
        made.append(Case(name, given, scheduler=HALVING))
    for name in MIXED:
        own = {"wd": 0.0, "momentum": 0.9} if name == "nag" else {}
        made.append(Case(name, {**COMMON, **own, "multi_precision": True}, dtype="float16"))
    return made + on_purpose()


NORMS = "norms are of the float32 weight; MXNet squares float16, which overflows"


def on_purpose() -> list[Case]:
    """Where MXNet 1.9.1 is not followed, and why."""
    scheduled = {k: v for k, v in COMMON.items() if k != "learning_rate"}
    mixed = {**COMMON, "multi_precision": True}
    return [
        Case("nag", {**COMMON, "momentum": 0.9}, differs="the decay in the momentum is of the old weight, as in 2.0"),
        Case("nadam", COMMON, differs="each parameter has its own product of mu; MXNet's is shared by all"),
        Case("dcasgd", {**COMMON, "momentum": 0.9}, differs="momentum works; MXNet raises"),
        Case("adam", scheduled, scheduler=HALVING, differs="a default rate does not overwrite the scheduler's base_lr"),
        Case(
            "signum", scheduled, scheduler=HALVING, differs="a default rate does not overwrite the scheduler's base_lr"
        ),
        Case(
            "lars",
            {**scheduled, "momentum": 0.9, "eta": 0.1},
            scheduler=HALVING,
            parameters=6,
            differs="momentum correction reaches all parameters, not the first chunk of four",
        ),
        Case(
            "lbsgd",
            {**scheduled, **LARGE_BATCH},
            scheduler={**HALVING, "step": 1},
            differs="all parameters see the scheduler's rate of the update before; in MXNet only the first one",
        ),
        Case("adagrad", {**COMMON, "clip_gradient": 0.0}, differs="clip_gradient=0 is off; here MXNet clips to 0"),
        Case("lars", {**mixed, "eta": 0.1}, dtype="float16", scale=1e3, differs=NORMS),
        Case("lamb", mixed, dtype="float16", scale=1e3, differs=NORMS),
        Case("lamb", mixed, dtype="float16", parameters=1, differs="the master weight is updated; MXNet's stays"),
        Case("adagrad", COMMON, dtype="float16", differs="states have the weight's dtype, so it works; MXNet raises"),
        Case("rmsprop", {**COMMON, "rho": 0.8}, differs="rho is another name of gamma1; MXNet has only that"),
        Case("adamw", COMMON, differs="the optimizer of MXNet 2.0; 1.9.1 has only an operator"),
        Case("lans", COMMON, differs="the optimizer of MXNet 2.0"),
        Case("adabelief", COMMON, differs="the optimizer of MXNet 2.0"),
    ]


def data(case: Case, seed: int) -> dict[str, Array]:
    """Weights w<i> and gradients g<update>_<i>."""
    rng = np.random.default_rng(seed)
    shapes = [SHAPES[i % len(SHAPES)] for i in range(case.parameters)]
    found = {f"w{i}": (case.scale * rng.normal(size=shape)).astype(case.dtype) for i, shape in enumerate(shapes)}
    for t in range(case.steps):
        found |= {f"g{t}_{i}": rng.normal(size=shape).astype(case.dtype) for i, shape in enumerate(shapes)}
    return found


def own(case: Case, given: dict[str, Array], noise: dict[str, Array]) -> dict[str, Array]:
    """gluongraph's weights after each update; of SGLD with MXNet's noise in the place of its own."""
    arguments = dict(case.arguments)
    if case.scheduler is not None:
        schedule = dict(case.scheduler)
        arguments["lr_scheduler"] = getattr(lr_scheduler, schedule.pop("name"))(**schedule)
    made = optimizer.create(case.optimizer, **arguments)
    updater = optimizer.get_updater(made)
    indices = range(case.parameters)
    weights = [nd.array(given[f"w{i}"], dtype=case.dtype) for i in indices]
    results: dict[str, Array] = {}
    for t in range(case.steps):
        nd.random.seed(t)
        updater(list(indices), [nd.array(given[f"g{t}_{i}"], dtype=case.dtype) for i in indices], weights)
        nd.random.seed(t)
        for i, w in enumerate(weights):
            masters = made.has_master(w.type)
            state = updater.states[i]
            results[f"w{t}_{i}"] = (state[1 if made.master_last else 0] if masters else w).asnumpy()
            if made.noise:
                drawn = nd.random.normal(shape=w.shape).asnumpy() * np.sqrt(made.rate(i))
                results[f"w{t}_{i}"] = results[f"w{t}_{i}"] - drawn + noise[f"noise{t}_{i}"]
    return results


def compare(case: Case, number: int, folder: Path) -> tuple[float | None, str]:
    """The largest difference over all updates, as a part of max|w|; None with MXNet's error where it has none."""
    with np.load(folder / f"{number}.out.npz") as file:
        theirs = dict(file)
    mine = own(case, data(case, number), theirs)
    if "error" in theirs:
        return None, str(theirs["error"])
    return max(float(np.abs(w - theirs[k]).max() / np.abs(w).max()) for k, w in mine.items()), ""


def find_mxnet(given: str | None) -> str:
    """The interpreter that has MXNet 1.9.1."""
    python = given or os.environ.get("GG_MXNET_PYTHON")
    if not python:
        raise SystemExit(
            "there is no MXNet to compare with: give its interpreter by --mxnet-python or GG_MXNET_PYTHON\n"
            "one is made by: python3.11 -m venv mx && mx/bin/pip install mxnet==1.9.1 'numpy<1.24'"
        )
    asked = [python, "-c", "import mxnet; print(mxnet.__version__)"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"{python} has no MXNet: {getattr(error, 'stderr', '') or error}") from None
    if not found.startswith("1.9."):
        raise SystemExit(f"{python} has MXNet {found}; the reference is 1.9.1")
    return python


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; the number of cases that neither agree nor differ on purpose."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mxnet-python", help="the interpreter that has MXNet 1.9.1")
    python = find_mxnet(parser.parse_args(argv).mxnet_python)
    warnings.simplefilter("ignore", UserWarning)  # of float16 without a master weight: that is one of the cases
    all_cases = cases()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, case in enumerate(all_cases):
            np.savez(folder / f"{number}.npz", **data(case, number))
        (folder / "cases.json").write_text(json.dumps([vars(case) for case in all_cases]))
        subprocess.run([python, str(PEER), name], stdout=subprocess.DEVNULL, check=True)
        found = [compare(case, number, folder) for number, case in enumerate(all_cases)]
    return report(all_cases, found)


def report(all_cases: list[Case], found: list[tuple[float | None, str]]) -> int:
    wrong = 0
    worst: dict[str, float] = {}
    for case, (difference, error) in zip(all_cases, found, strict=True):
        same = difference is not None and difference <= TOLERANCE
        if not case.differs and difference is not None:
            worst[case.optimizer] = max(worst.get(case.optimizer, 0.0), difference)
        if same == bool(case.differs):
            wrong += 1
            told = error or f"{difference:.1e}"
            print(f"NOT AS EXPECTED: {case} {told} {'although ' + case.differs if same else ''}")
    print(f"{'optimizer':14}{'largest difference, of max|w|':>32}{'cases':>8}")
    for name, value in sorted(worst.items()):
        print(f"{name:14}{value:32.1e}{sum(c.optimizer == name and not c.differs for c in all_cases):8}")
    print("\non purpose otherwise than MXNet 1.9.1:")
    for case, (difference, error) in zip(all_cases, found, strict=True):
        if case.differs:
            print(f"{'MXNet raises' if error else f'{difference:.1e}':>14}  {case}: {case.differs}")
    print(f"\n{len(all_cases)} cases, {wrong} not as expected")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main()))
