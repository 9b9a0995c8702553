"""Steps that ranks train together and export: what their artefacts have to repeat bit for bit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

import gluongraph as mx
from gluongraph import gluon, random
from gluongraph.host import disk
from gluongraph.runtime.communicator.environment import world

RNG = np.random.default_rng(0)
X = RNG.standard_normal((512, 20)).astype(np.float32)
Y = RNG.integers(0, 10, 512).astype(np.int32)
OWN, STEPS = 32, 4  # samples of a rank's batch; updates after the export
MODES = ["step", "accumulate", "apply", "evaluate"]
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def part(number: int, rank: int | None = None) -> tuple[Any, Any]:
    """A rank's part of a batch of all ranks."""
    start = (number * world().size + (world().rank if rank is None else rank)) * OWN
    return X[start : start + OWN], Y[start : start + OWN]


def _made(
    optimizer: str,
    settings: dict[str, Any],
    store: dict[str, Any] | None = None,
    layers: Sequence[gluon.HybridBlock] = (),
    dtype: str = "float32",
    **options: Any,
) -> Any:
    random.seed(3)
    net = gluon.nn.HybridSequential()
    if dtype != "float32":
        net.add(gluon.nn.HybridLambda(lambda F, x: F.cast(x, dtype)))
    net.add(gluon.nn.Dense(32, activation="relu", in_units=20), gluon.nn.Dropout(0.3), *layers)
    net.add(gluon.nn.Dense(10, in_units=32))
    net.cast(dtype)
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), optimizer, settings, **{"kvstore": "dist_sync", **(store or {})})
    return mx.compile(net, LOSS, trainer, **options)


def sgd(**store: Any) -> Any:
    return _made("sgd", {"learning_rate": 0.05, "momentum": 0.9}, store)


def adam() -> Any:
    """With a schedule."""
    return _made("adam", {"lr_scheduler": mx.lr_scheduler.CosineScheduler(20, base_lr=0.01, warmup_steps=3)})


def scaled() -> Any:
    """More that ranks have in common: is a gradient infinite, what is the norm of all? Noise of updates, averages."""
    settings = {"learning_rate": 1e-3}
    return _made("sgld", settings, precision="16-mixed", clip_norm=1.0, ema=0.99)


def mixed() -> Any:
    """Weights in float32, most of what is computed in bfloat16."""
    return _made("adam", {"learning_rate": 0.01}, precision="bf16-mixed")


def half() -> Any:
    """Weights and gradients in float16, which are summed over ranks as such."""
    return _made("sgd", {"learning_rate": 0.05, "momentum": 0.9, "multi_precision": True}, dtype="float16")


def brain() -> Any:
    """The same in bfloat16."""
    return _made("sgd", {"learning_rate": 0.05, "momentum": 0.9}, dtype="bfloat16")


def compressed(kind: str, **store: Any) -> Any:
    """Gradients are compressed on the way to other ranks; each keeps back what it has not sent."""
    how = {"type": kind, "threshold": 0.5}
    return _made("sgd", {"learning_rate": 0.01, "momentum": 0.9}, {"compression_params": how, **store})


def divided(strategy: str, **options: Any) -> Any:
    """Optimizer states, with "fsdp" parameters as well, are divided among ranks."""
    return _made("adam", {"learning_rate": 0.01}, {"strategy": strategy}, **options)


def deterministic() -> Any:
    """In micro-batches, whose gradients and running statistics are added up in one order on any number of ranks."""
    settings = {"learning_rate": 0.05, "momentum": 0.9}
    return _made("sgd", settings, layers=[gluon.nn.BatchNorm(in_channels=32)], deterministic=True)


def normalized() -> Any:
    """With statistics that each rank has for itself."""
    return _made("sgd", {"learning_rate": 0.05}, layers=[gluon.nn.BatchNorm(in_channels=32)])


TRAININGS: dict[str, Callable[[], Any]] = {  # on any number of ranks
    **{each.__name__: each for each in (sgd, adam, scaled, mixed, half, brain)},
    "fp16": partial(compressed, "fp16"),
    "bf16": partial(compressed, "bf16"),
}
FIXED: dict[str, Callable[[], Any]] = {  # on as many as have exported them
    **{kind: partial(compressed, kind) for kind in ("2bit", "1bit", "sign")},
    **{strategy: partial(divided, strategy) for strategy in ("zero1", "zero2", "fsdp")},
    "zero1-16": partial(divided, "zero1", precision="16-mixed", clip_norm=1.0, ema=0.99),
    "fsdp-16": partial(divided, "fsdp", precision="16-mixed", clip_norm=1.0),
    "zero2-bf16": partial(divided, "zero2", precision="bf16-mixed", clip_norm=1.0),
}


def global_batch(number: int) -> tuple[Any, Any]:
    """This rank's part of a batch of 64 samples of all ranks."""
    own = 64 // world().size
    start = number * 64 + world().rank * own
    return X[start : start + own], Y[start : start + own]


def weights(step: Any) -> list[bytes]:
    """All parameters as they are; of what is divided among ranks all of these call it."""
    with step.trainer.whole_parameters():
        return [parameter.data().asnumpy().tobytes() for parameter in step.trainer.params]


def losses(step: Any, numbers: range) -> list[bytes]:
    """Train on by these batches: this rank's losses."""
    return [step(*part(i)).asnumpy().tobytes() for i in numbers]


def export_all(folder: str) -> None:
    """Each kind of step, at its second update, by each rank or by all together; it and the loaded one train alike. What
    they come to is saved: <kind><rank>.npz and the checkpoint <kind>."""
    for kind, make in (TRAININGS | FIXED).items():
        step, file = make(), Path(folder, f"{kind}{0 if kind in FIXED else world().rank}.gga")
        step(*part(0))
        step.export(file, modes=MODES)
        loaded, drawn = mx.load(file), random.all_states()
        ours = losses(step, range(STEPS))
        random.set_all_states(drawn)
        assert losses(loaded, range(STEPS)) == ours and weights(loaded) == weights(step), kind
        with step.trainer.whole_parameters():
            np.savez(f"{folder}/{kind}{world().rank}.npz", *(p.data().asnumpy() for p in step.trainer.params))
        loaded.save(f"{folder}/{kind}")
        drawn = random.all_states()
        for each in (step, loaded):
            random.set_all_states(drawn)
            each.accumulate(*part(0))
            each.apply()
        assert weights(loaded) == weights(step), kind


def exported_by_two(factory: pytest.TempPathFactory) -> Path:
    """A new folder with what `export_all` has written on two ranks. That takes most of a minute, and happens once in a
    run of pytest, whichever of its processes asks first."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with disk.turn(base, "exported", patience=300):
        made, draft = base / "exported_by_two", base / "exported_by_two_draft"
        if not made.exists():
            shutil.rmtree(draft, ignore_errors=True)  # of a failure
            draft.mkdir()
            run_ranks(2, export_all, draft, timeout=300)
            draft.rename(made)
    return Path(shutil.copytree(made, factory.mktemp("exported"), dirs_exist_ok=True))
