"""Functions of PyTorch's that torch.export cannot trace as they are, and what stands for them while it traces."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any

from gluongraph.errors import UnsupportedError, is_library_file, with_user_location

AOT_AUTOGRAD = "_aot_autograd"  # in names of its files
INNERMOST = 3  # frames of the user's functions that are kept for each node of a program
# PyTorch's reads the lengths while it is traced: an operator without a body, whose meaning the table has.
CTC_LOSS = (
    "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, int reduction,"
    " bool zero_infinity) -> Tensor"
)


@lru_cache(maxsize=1)
def _library(torch: Any) -> Any:
    """The library of the operators; it lives as long as the process."""
    library = torch.library.Library("gluongraph", "DEF")
    library.define(CTC_LOSS)

    def fake(log_probs: Any, targets: Any, frames: Any, symbols: Any, blank: int, reduction: int, zero: bool) -> Any:
        return log_probs.new_empty(log_probs.shape[1:-1] if reduction == 0 else ())

    torch.library.register_fake("gluongraph::ctc_loss", fake, lib=library)
    return library


@contextmanager
def traceable(torch: Any) -> Iterator[None]:
    """Within: these functions are replaced by what can be traced."""
    _library(torch)
    transformer = torch.nn.modules.transformer
    replaced = [
        (torch, "ctc_loss", _ctc_loss(torch)),
        (torch, "instance_norm", _instance_norm(torch, torch.instance_norm)),
        (torch.nn.functional, "gaussian_nll_loss", _gaussian_nll_loss(torch, torch.nn.functional.gaussian_nll_loss)),
        # Its gradients would be constants of the program. `Tensor.backward` calls the other one.
        (torch.autograd, "grad", _refused("torch.autograd.grad", torch.autograd.grad)),
        (torch.autograd, "backward", _refused("backward", torch.autograd.backward)),
        # It compares the elements of a mask with those of a causal one: a hint only, for the mask is used in any case.
        (transformer, "_detect_is_causal_mask", lambda mask, is_causal=None, size=None: bool(is_causal)),
        # Whether arguments are in their domain is a question about elements; validate_args=True asks it all the same.
        (torch.distributions.Distribution, "_validate_args", False),
        # It keeps the lines of functions called forward alone; errors are to name those that forward calls, too.
        (torch.fx.proxy.TracerBase, "_filter_traceback_frames", _users_frames),
    ]
    replaced = [(owner, name, function) for owner, name, function in replaced if hasattr(owner, name)]
    own = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, function in replaced:
        setattr(owner, name, function)
    try:
        yield
    finally:
        for owner, name, function in own:
            setattr(owner, name, function)


def _users_frames(tracer: Any, frames: traceback.StackSummary) -> traceback.StackSummary:
    """The frames of modules and of the user's functions, of these the innermost."""
    own = [each for each in frames if is_users_file(each.filename)]
    kept = {*map(id, own[-INNERMOST:]), *(id(each) for each in frames if each.name == "forward")}
    return traceback.StackSummary.from_list([each for each in frames if id(each) in kept])


def is_users_file(name: str) -> bool:
    """Is this code of the user's, typed or in a file, and neither gluongraph's nor PyTorch's?"""
    return not (name.startswith(("<frozen", "<eval_with_key")) or is_library_file(name))


def _refused(name: str, own: Any) -> Any:
    """A function that says that it is not traced, where the module calls it."""

    def refuse(*args: Any, **how: Any) -> Any:
        if _is_of_aot_autograd():
            return own(*args, **how)
        help = "compute gradients outside of it, of what it gives"
        raise UnsupportedError(with_user_location(f"{name} within it", help=help))

    return refuse


def _is_of_aot_autograd() -> bool:
    """Is a function called by PyTorch's AOT autograd? It differentiates the bodies of loops with parameters while they
    are traced, and keeps nothing of it in the program."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not is_users_file(name := frame.f_code.co_filename):
        if AOT_AUTOGRAD in name:
            return True
        frame = frame.f_back
    return False


def _gaussian_nll_loss(torch: Any, own: Any) -> Any:
    """torch.nn.functional.gaussian_nll_loss, which does not ask whether a variance is negative."""

    def gaussian_nll_loss(*args: Any, **how: Any) -> Any:
        before, torch.any = torch.any, lambda condition: False
        try:
            return own(*args, **how)
        finally:
            torch.any = before

    return gaussian_nll_loss


def _ctc_loss(torch: Any) -> Any:
    """torch.ctc_loss as the operator."""

    def ctc_loss(
        log_probs: Any,
        targets: Any,
        input_lengths: Any,
        target_lengths: Any,
        blank: int = 0,
        reduction: int = 1,
        zero_infinity: bool = False,
    ) -> Any:
        lengths = [v if isinstance(v, torch.Tensor) else torch.tensor(v) for v in (input_lengths, target_lengths)]
        return torch.ops.gluongraph.ctc_loss(log_probs, targets, *lengths, blank, reduction, zero_infinity)

    return ctc_loss


def _instance_norm(torch: Any, own: Any) -> Any:
    """torch.instance_norm, which moves running statistics where torch.export does not see it, in two parts."""

    def instance_norm(
        x: Any, weight: Any, bias: Any, mean: Any, var: Any, by_input: bool, momentum: float, eps: float, *rest: Any
    ) -> Any:
        if mean is None or not by_input:
            return own(x, weight, bias, mean, var, by_input, momentum, eps, *rest)
        with torch.no_grad():
            spatial = tuple(range(2, x.dim()))
            new_var, new_mean = torch.var_mean(x.detach(), dim=spatial)
            for running, new in ((mean, new_mean), (var, new_var)):
                running.copy_(running * (1 - momentum) + new.mean(0).to(running.dtype) * momentum)
        return own(x, weight, bias, None, None, True, momentum, eps, *rest)

    return instance_norm
