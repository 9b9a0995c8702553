"""The arguments of a Trainer, checked when it is made."""

from __future__ import annotations

import datetime
import difflib
import functools
import inspect
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

from gluongraph.errors import with_user_location
from gluongraph.host import nvidia
from gluongraph.lightning.accelerators.accelerator import Accelerator
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.strategies import Strategy
from gluongraph.tracing.precision import precision_of

ACCELERATORS = {
    "auto": "cpu",
    "cpu": "cpu",
    "gpu": "cuda",
    "cuda": "cuda",
}
# Lightning's names -> the strategies of gluon.Trainer (docs/distributed.md). None: replicated parameters.
STRATEGIES: Mapping[str, str | None] = {
    "auto": None,
    "single_device": None,
    "ddp": None,
    "ddp_find_unused_parameters_false": None,
    "ddp_find_unused_parameters_true": None,
    "fsdp": "fsdp",
    "deepspeed": "zero2",
    "deepspeed_stage_1": "zero1",
    "deepspeed_stage_2": "zero2",
    "deepspeed_stage_3": "fsdp",
}
_REFUSED_STRATEGIES = {
    "ddp_spawn": "ranks are started as programs, not forked from one",
    "ddp_fork": "ranks are started as programs, not forked from one",
    "ddp_notebook": "ranks are started as programs, which a notebook is not",
    "fsdp_cpu_offload": "parameters are not moved out of the way",
    "deepspeed_stage_2_offload": "states are not moved out of the way",
    "deepspeed_stage_3_offload": "parameters are not moved out of the way",
}


_P = ParamSpec("_P")


def checks_names(init: Callable[_P, None]) -> Callable[_P, None]:
    """A constructor that names the nearest argument where one is given that it has not."""
    known = [name for name in inspect.signature(init).parameters if name != "self"]

    @functools.wraps(init)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> None:
        for name in kwargs:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                help = f"did you mean {near[0]}=?" if near else f"there are {', '.join(known)}"
                raise TypeError(
                    with_user_location(f"{init.__qualname__.split('.')[0]} has no argument {name!r}", help=help)
                )
        init(*args, **kwargs)

    return checked


def check_count(name: str, value: Any, least: int, what: str = "") -> None:
    """Raise MisconfigurationException if it is no whole number from `least` on."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= least):
        return
    raise misconfigured(f"{name} is a whole number from {least} on{what}, not {value!r}")


def check_switches(**given: Any) -> None:
    """Raise MisconfigurationException if one of these arguments is neither true nor false, as a text is not: "False"
    would be true.

    >>> check_switches(eager=False, barebones=None)
    """
    for name, value in given.items():
        if value not in (True, False, None) or isinstance(value, float):
            raise misconfigured(f"{name} is True or False, not {value!r}")


def check_barebones(**given: Any) -> None:
    """Raise MisconfigurationException if one of these arguments asks for what `barebones=True` leaves out.

    >>> check_barebones(logger=False, num_sanity_val_steps=None, detect_anomaly=False)
    """
    for name, value in given.items():
        if value:
            message = f"barebones=True, which leaves out all that takes time beside the steps, and {name}={value!r}"
            raise misconfigured(message, help="leave one of them out")


def check_limit(name: str, value: Any) -> int | float:
    """A limit on batches: their number, or a share of them.

    Raises:
        MisconfigurationException: neither.

    >>> check_limit("limit_val_batches", 0.25), check_limit("limit_val_batches", None)
    (0.25, 1.0)
    """
    if value is None:
        return 1.0
    fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    if fits and (0 <= value <= 1 if isinstance(value, float) else value >= 0):
        return value  # type: ignore[no-any-return]
    raise misconfigured(f"{name} is a number of batches, or a share from 0.0 to 1.0; not {value!r}")


def folder_of(name: str, given: Any) -> str:
    """A folder, by default the current one.

    Raises:
        MisconfigurationException: it is no path.

    >>> folder_of("default_root_dir", "runs")
    'runs'
    """
    if given is not None and not isinstance(given, (str, os.PathLike)):
        raise misconfigured(f"{name} is a path, not {given!r}")
    return os.getcwd() if given is None else os.fspath(given)


def seconds_of(name: str, given: Any, otherwise: str = "") -> float | None:
    """A duration in seconds: "DD:HH:MM:SS", a timedelta or its arguments. `otherwise` is what else may be given.

    Raises:
        MisconfigurationException: none of these.

    >>> seconds_of("max_time", "00:00:01:30")
    90.0
    """
    if given is None:
        return None
    try:
        if isinstance(given, str):
            days, hours, minutes, seconds = map(int, given.strip().split(":"))
            return datetime.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
        made = datetime.timedelta(**given) if isinstance(given, dict) else given
        return float(made.total_seconds())
    except (ValueError, TypeError, AttributeError):
        message = f'{name} is "DD:HH:MM:SS", a timedelta, or a dict of its arguments{otherwise}; not {given!r}'
        raise misconfigured(message) from None


def counted(name: str, given: Any) -> tuple[int, str | None]:
    """A number of batches or steps in words, and of which of them it is. Of all else: 0 and None.

    >>> counted("val_check_interval", "10 steps"), counted("val_check_interval", "1 batch"), counted("max_time", 3)
    ((10, 'steps'), (1, 'batches'), (0, None))

    Raises:
        MisconfigurationException: it is 0 of them.
    """
    found = re.fullmatch(r"\s*(\d+)\s*(step|batch)(?:s|es)?\s*", given) if isinstance(given, str) else None
    if found is None:
        return 0, None
    if int(found[1]) == 0:
        raise misconfigured(f"{name}={given!r}", help='a number from 1 on, as "10 steps" or "10 batches"')
    return int(found[1]), {"step": "steps", "batch": "batches"}[found[2]]


def updates_of(name: str, given: Any, default: int) -> int:
    """An interval in updates: their number, or "10 steps".

    >>> updates_of("log_every_n_steps", "10 steps", 50), updates_of("log_every_n_steps", None, 50)
    (10, 50)

    Raises:
        MisconfigurationException: neither.
    """
    count, unit = counted(name, given)
    if unit == "steps":
        return count
    if unit == "batches":
        raise misconfigured(f"{name}={given!r}: it is counted in updates", help='a number of them, as 10 or "10 steps"')
    check_count(name, given, 0)
    return default if given is None else int(given)


def target_of(accelerator: Any) -> str:
    """The target to compile for: "cpu" or "cuda".

    Raises:
        MisconfigurationException: another accelerator, or a GPU where there is none.
    """
    name = (accelerator.name() if isinstance(accelerator, Accelerator) else str(accelerator)).lower()
    if name in ("mps", "tpu", "hpu"):
        message = f"accelerator={accelerator!r}: there is no code generation for it"
        raise misconfigured(message, help='accelerator="cpu", or "gpu" where an NVIDIA GPU is')
    if name not in ACCELERATORS:
        raise misconfigured(f"accelerator={accelerator!r}: there are {', '.join(map(repr, ACCELERATORS))}")
    has_gpu = nvidia.count() > 0
    if ACCELERATORS[name] == "cuda" and not has_gpu:
        raise misconfigured(f"accelerator={accelerator!r}: no NVIDIA GPU is found", help='accelerator="cpu"')
    return "cuda" if name == "auto" and has_gpu else ACCELERATORS[name]


def devices_of(devices: Any, target: str) -> int:
    """How many devices train, each by a process of its own.

    Raises:
        MisconfigurationException: no number of devices.

    >>> devices_of("2", "cpu"), devices_of([0, 1], "cpu"), devices_of("auto", "cpu")
    (2, 2, 1)
    """
    if isinstance(devices, str) and devices.strip().lstrip("-").isdigit():
        devices = int(devices)
    if devices in ("auto", -1):
        return max(nvidia.count(), 1) if target == "cuda" else 1
    if isinstance(devices, (list, tuple)) and devices and all(isinstance(d, int) for d in devices):
        return len(devices)
    if isinstance(devices, int) and not isinstance(devices, bool) and devices > 0:
        return devices
    raise misconfigured(f"devices is a number from 1 on, a list of devices, -1 or 'auto'; not {devices!r}")


def strategy_of(strategy: Any) -> str | None:
    """The strategy of the gluon.Trainer.

    Raises:
        MisconfigurationException: there is none that is like it.
    """
    name = strategy.strategy_name if isinstance(strategy, Strategy) else str(strategy)
    if name in _REFUSED_STRATEGIES:
        help = "gluongraph run -n 4 train.py starts the ranks"
        raise misconfigured(f"strategy={strategy!r}: {_REFUSED_STRATEGIES[name]}", help=help)
    if name not in STRATEGIES:
        raise misconfigured(f"strategy={strategy!r}: there are {', '.join(map(repr, STRATEGIES))}")
    return STRATEGIES[name]


def check_precision(precision: Any) -> str:
    """Lightning's name of a precision, which `mx.compile` takes too.

    Raises:
        MisconfigurationException: there is no such precision.

    >>> check_precision("bf16"), check_precision(None)
    ('bf16-mixed', '32-true')
    """
    try:
        name = precision_of("32" if precision is None else precision).name
        return f"{name}-true" if name.isdigit() else name
    except ValueError as error:
        raise misconfigured(str(error).partition("\n")[0]) from None


def check_clipping(value: Any, algorithm: Any) -> str | None:
    """The algorithm by which gradients are clipped; None, which is "norm", where none is given.

    Raises:
        MisconfigurationException: no positive number, or an algorithm that is neither "norm" nor "value".
    """
    if value is not None and not (
        isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
    ):
        raise misconfigured(f"gradient_clip_val is a number from 0 on, not {value!r}")
    name = None if algorithm is None else str(algorithm).lower()
    if name not in (None, "norm", "value"):
        raise misconfigured(f"gradient_clip_algorithm={algorithm!r}: there are 'norm' and 'value'")
    return name


def check_norm_type(value: Any, clips: Any, algorithm: str | None) -> float:
    """The p of the norm by which gradients are clipped.

    Raises:
        MisconfigurationException: no number above 0, or elements are bounded and no norm.
    """
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = 0.0
    if isinstance(value, bool) or not found > 0:
        raise misconfigured(f"gradient_clip_norm_type={value!r}", help='a number above 0, or "inf"')
    if found != 2 and clips and algorithm == "value":
        message = f'gradient_clip_norm_type={value!r}, with gradient_clip_algorithm="value", which bounds each element'
        raise misconfigured(message, help="leave one of them out")
    return found


def check_val_check_interval(interval: Any, check_val_every_n_epoch: Any) -> int | float:
    """How often is validated: a share of the epoch, or a number of batches. 1.0 of what is said by other arguments.

    Raises:
        MisconfigurationException: neither.
    """
    if interval is None or isinstance(interval, (str, dict, datetime.timedelta)):
        return 1.0
    fits = isinstance(interval, (int, float)) and not isinstance(interval, bool)
    if not fits or (not 0 <= interval <= 1 if isinstance(interval, float) else interval < 1):
        message = f"val_check_interval is a share of the epoch up to 1.0, or a number of batches; not {interval!r}"
        raise misconfigured(message)
    if check_val_every_n_epoch is None and isinstance(interval, float):
        message = f"val_check_interval={interval!r} is a share of an epoch, with check_val_every_n_epoch=None"
        raise misconfigured(message, help="give a number of batches")
    return interval  # type: ignore[no-any-return]
