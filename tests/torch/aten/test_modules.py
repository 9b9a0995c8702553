"""Every module of torch.nn in both modes: results, statistics that move, gradients of inputs and parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import aten_modules as modules  # noqa: E402
import aten_programs as programs  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
GROUP = 12  # names of modules that are traced together: a trace takes longer than what is in it
NAMES = sorted(modules.CASES)
GROUPS = [NAMES[k : k + GROUP] for k in range(0, len(NAMES), GROUP)]


class Together(nn.Module):
    """Several modules, each with arguments of its own."""

    def __init__(self, parts: dict[str, Any]):
        super().__init__()
        self.parts = nn.ModuleDict(parts)

    def forward(self, *args: tuple[Any, ...]) -> Any:
        return {name: part(*own) for (name, part), own in zip(self.parts.items(), args, strict=True)}


def together(names: list[str]) -> tuple[Together, list[Any]]:
    """All cases of these modules as one module, and its arguments."""
    torch.manual_seed(0)
    parts, args = {}, []
    for name in names:
        for k, (make, own) in enumerate(modules.CASES[name]):
            parts[f"{name}{k}"] = make()
            args.append(tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in own))  # no two are one
    return Together(parts), args


@pytest.mark.parametrize("names", GROUPS, ids=["-".join((g[0], g[-1])) for g in GROUPS])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_modules(names: list[str], training: bool) -> None:
    drawn = [name for name in names if training and name in modules.DRAWS]
    programs.compare(*together([name for name in names if name not in drawn]), training)
    if drawn:
        module, args = together(drawn)
        traced = programs.Traced(module, args, training)
        assert traced.program.draws == len(args)
        found = traced.values(traced.results)
        assert [v.shape for v in found] == [own[0].shape for own in args]


def test_every_module_of_torch_nn_is_listed() -> None:
    every = {n for n, m in vars(nn).items() if inspect.isclass(m) and issubclass(m, nn.Module)}
    assert sorted(every - {*modules.CASES, *modules.LEFT_OUT}) == []
    assert sorted({*modules.CASES, *modules.LEFT_OUT} - every) == []
