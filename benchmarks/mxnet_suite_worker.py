"""The pytest plugin of `mxnet_suite.py`: says in a file, line by line as JSON, what is collected, begun and done."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Names that numpy had in MXNet's time, and has no longer.
ALIASES: dict[str, Any] = {
    "float": float, "int": int, "object": object, "str": str, "complex": complex, "float_": np.float64,
    "product": np.prod, "cumproduct": np.cumprod, "alltrue": np.all, "sometrue": np.any, "round_": np.round,
    "NaN": np.nan, "Inf": np.inf, "PINF": np.inf, "NINF": -np.inf, "in1d": np.isin, "row_stack": np.vstack,
    "asscalar": lambda a: a.item(), "asfarray": lambda a, dtype=np.float64: np.asarray(a, dtype),
}  # fmt: skip
for _name, _value in ALIASES.items():
    if _name not in vars(np):
        setattr(np, _name, _value)

_LOG = Path(os.environ["GG_SUITE_LOG"])
_CHOSEN = set(json.loads(Path(os.environ["GG_SUITE_CHOSEN"]).read_text()))


def _say(**what: Any) -> None:
    with _LOG.open("a") as file:
        file.write(json.dumps(what) + "\n")


def _name(item: pytest.Item) -> str:
    """file.py::test or file.py::Class::test, without what parametrizes it."""
    return item.nodeid.rsplit("/", 1)[-1].split("[")[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Report all that was collected, and keep what is to be run."""
    _say(collected=[_name(item) for item in items])
    items[:] = [item for item in items if _name(item) in _CHOSEN]


@pytest.hookimpl
def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Report a file that cannot be imported."""
    if report.failed:
        _say(error=_message(report.longrepr))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Report that a test begins."""
    _say(begun=_name(item))
    return (yield)


@pytest.hookimpl
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Report how a test, or its setup, went."""
    if report.when == "call" or report.outcome != "passed":
        name = report.nodeid.rsplit("/", 1)[-1].split("[")[0]
        message = _message(report.longrepr) if report.failed else ""
        _say(done=name, outcome=report.outcome, seconds=round(report.duration, 2), message=message)


def _message(longrepr: Any) -> str:
    crash = getattr(longrepr, "reprcrash", None)
    return (
        "\n".join(str(longrepr).splitlines()[-6:])
        if crash is None
        else f"{crash.message}\n  {Path(crash.path).name}:{crash.lineno}"
    )
