"""Training steps of the models in torch_zoo: PyTorch's eager, through torch.compile, and through `from_torch`.

All train the same module on the same batch by cross entropy and AdamW (lr 1e-4, weight decay 0.01).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.nn import functional

from gluongraph.bench import torch_models, torch_zoo

RATE, DECAY = 1e-4, 0.01


def problem(name: str) -> tuple[torch_zoo.Model, torch.Tensor]:
    """A model with its batch, and the classes of its samples: the same in every process."""
    torch.manual_seed(0)
    model = torch_zoo.build(name)
    model.module.train()
    samples = next(iter((*model.args, *model.kwargs.values()))).shape[0]
    return model, torch.randint(0, torch_zoo.CLASSES, (samples,))


def peer(name: str, threads: int, compiled: bool = False) -> Callable[[], Any]:
    """A step of PyTorch's: forward and backward, and fused AdamW; with `compiled` both by torch.compile."""
    torch.set_num_threads(threads)
    model, labels = problem(name)
    optimizer = torch.optim.AdamW(model.module.parameters(), RATE, weight_decay=DECAY, fused=not compiled or None)

    def forward() -> torch.Tensor:
        return functional.cross_entropy(model.module(*model.args, **model.kwargs), labels)

    update: Callable[[], Any] = optimizer.step
    if compiled:
        forward, update = torch.compile(forward), torch.compile(optimizer.step)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = forward()
        loss.backward()
        update()
        return loss.detach()

    return step


class Own:
    """A step of the same module, traced by `from_torch` and compiled as a whole."""

    def __init__(self, name: str):
        import gluongraph as mx
        from gluongraph import gluon

        model, labels = problem(name)
        net = mx.from_torch(model.module, model.args, model.kwargs)
        optimizer = torch.optim.AdamW(model.module.parameters(), RATE, weight_decay=DECAY)
        trainer = gluon.Trainer.from_torch(optimizer)
        self.step = mx.compile(net, functional.cross_entropy, trainer)
        self.batch = [t.numpy() for t in (*model.args, *model.kwargs.values(), labels)]

    def __call__(self) -> Any:
        """One training step; returns the loss."""
        return self.step(*self.batch)

    def kernels(self, repeat: int) -> dict[str, Any]:
        """What its kernels do, and what the machine could, as data."""
        return dict(self.step.profile(*self.batch, repeat=repeat).data())

    def bound(self) -> float:
        """Seconds that the machine needs for what its kernels do."""
        from gluongraph.bench.own import bound

        return bound(self.step.plan)


class Check:
    """Is a model of the zoo computed as PyTorch does? `found` tells the relative errors; a step does nothing.

    In float64, without dropout: the output, each gradient by its largest element, and the losses of five updates by SGD
    and by AdamW; and in bf16-mixed precision, against float32.
    """

    def __init__(self, name: str):
        self.found = check(name)

    def __call__(self) -> Any:
        """Nothing: the check was made before."""
        return torch.zeros(1)


def check(name: str, updates: int = 5) -> dict[str, float]:
    """The relative errors against PyTorch: "output", "gradient", "sgd", "adamw"; that of "bf16", and of PyTorch's own
    "autocast" to it. Where the losses of an optimizer differ by more than rounding, "sgd_rounding" and "adamw_rounding"
    tell how far PyTorch's own move with its weights' last bits."""
    import gluongraph as mx

    model, labels = problem(name)
    module = _without_random_numbers(model.module.double())
    args = tuple(a.double() if a.is_floating_point() else a for a in model.args)
    start = copy.deepcopy(module.state_dict())
    net = mx.from_torch(module, args, model.kwargs)
    with _exact_hardsigmoid():
        found = _in_float64(net, module, start, args, model.kwargs, labels, updates)
    module.load_state_dict(start)
    found["bf16"] = _mixed(module.float(), model, labels)
    found["autocast"] = max(_autocast(module, start, model, labels, seed) for seed in range(BATCHES))
    return found


def _in_float64(
    net: Any, module: torch.nn.Module, start: dict[str, Any], args: Any, kwargs: Any, labels: torch.Tensor, updates: int
) -> dict[str, float]:
    """The errors of outputs, gradients, and the losses of updates, from the weights `start`, which the module has."""
    import gluongraph as mx
    from gluongraph import gluon

    output, gradient = _outputs(net, module, args, kwargs, labels)
    found = {"output": output, "gradient": gradient}
    batch = [t.numpy() for t in (*args, *kwargs.values(), labels)]
    for rule, kind, settings in (
        ("sgd", torch.optim.SGD, {"lr": 0.01}),
        ("adamw", torch.optim.AdamW, {"lr": RATE, "weight_decay": DECAY}),
    ):
        module.load_state_dict(start)
        net.load_state_dict(start)
        trainer = gluon.Trainer.from_torch(kind(module.parameters(), **settings))
        step = mx.compile(net, functional.cross_entropy, trainer)
        losses = [float(step(*batch).asscalar()) for _ in range(updates)]

        def train(weights: dict[str, Any], kind: Any = kind, settings: dict[str, Any] = settings) -> list[float]:
            module.load_state_dict(weights)
            return _losses(module, kind(module.parameters(), **settings), args, kwargs, labels, updates)

        expected = train(start)
        found[rule] = _largest_error([expected, losses])
        if not found[rule] <= torch_models.BOUNDS[rule]:
            others = [train(_moved(start, seed)) for seed in range(BATCHES)]
            found[f"{rule}_rounding"] = max(_largest_error([expected, other]) for other in others)
    return found


@contextmanager
def _exact_hardsigmoid() -> Iterator[None]:
    """Within, PyTorch's gradient of hardsigmoid is exact. Its own has 1/6 rounded to float32, whatever the type is: an
    error of 3e-8, of which five updates of DeepLabV3 by SGD make 1e-6."""
    with patch.object(functional, "hardsigmoid", lambda x, inplace=False: functional.relu6(x + 3) / 6):
        yield


def _mixed(module: torch.nn.Module, model: torch_zoo.Model, labels: torch.Tensor, updates: int = 3) -> float:
    """The largest relative error of the losses of some updates in bf16-mixed precision, against float32."""
    import gluongraph as mx
    from gluongraph import gluon

    start = copy.deepcopy(module.state_dict())
    net = mx.from_torch(module, model.args, model.kwargs)
    batch = [t.numpy() for t in (*model.args, *model.kwargs.values(), labels)]
    losses = []
    for precision in ("32", "bf16-mixed"):
        net.load_state_dict(start)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        step = mx.compile(net, functional.cross_entropy, gluon.Trainer.from_torch(optimizer), precision=precision)
        losses.append([float(step(*batch).asscalar()) for _ in range(updates)])
    return _largest_error(losses)


def _largest_error(losses: list[list[float]]) -> float:
    """The largest relative error of the second losses to the first ones; NaN where one of them is."""
    expected, found = np.array(losses)
    return float(np.abs(found / expected - 1).max())


BATCHES = 3  # of which the largest error of PyTorch's autocast is taken: a single one may be small by chance


def _autocast(
    module: torch.nn.Module, start: dict[str, Any], model: torch_zoo.Model, labels: torch.Tensor, seed: int
) -> float:
    """What `_mixed` tells, of PyTorch's own steps, on another batch for each seed."""
    try:
        return _autocast_here(module, start, model, labels, seed)
    except RuntimeError:  # oneDNN has no LSTM in bfloat16 for processors without AVX-512
        with torch.backends.mkldnn.flags(enabled=False):
            return _autocast_here(module, start, model, labels, seed)


def _autocast_here(
    module: torch.nn.Module, start: dict[str, Any], model: torch_zoo.Model, labels: torch.Tensor, seed: int
) -> float:
    draw = torch.Generator().manual_seed(seed)
    args = [torch.randn(a.shape, generator=draw) if a.is_floating_point() else a for a in model.args]
    losses = []
    for mixed in (False, True):
        module.load_state_dict(start)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            losses.append(_losses(module, optimizer, args, model.kwargs, labels, updates=3))
    return _largest_error(losses)


def _losses(module: torch.nn.Module, optimizer: Any, args: Any, kwargs: Any, labels: Any, updates: int) -> list[float]:
    """The losses of so many of PyTorch's updates on one batch."""
    losses = []
    for _ in range(updates):
        optimizer.zero_grad()
        scores = module(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            loss = functional.cross_entropy(scores if scores.dtype == torch.float64 else scores.float(), labels)
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


ULPS = 1e-15  # some units in the last place of float64, relative


def _moved(state: dict[str, Any], seed: int) -> dict[str, Any]:
    """Weights that differ from these by rounding."""
    draw = torch.Generator().manual_seed(seed)
    return {
        name: value * (1 + ULPS * torch.randn(value.shape, generator=draw, dtype=value.dtype))
        if value.is_floating_point()
        else value
        for name, value in state.items()
    }


def _without_random_numbers(module: torch.nn.Module) -> torch.nn.Module:
    """The module with the probability of every dropout 0, by whatever name the submodule has it."""
    names = ("p", "dropout", "attention_dropout", "attn_dropout", "drop_prob", "dropout_prob", "drop", "drop_rate")
    for each in module.modules():
        for name in names:
            if isinstance(getattr(each, name, None), float):
                setattr(each, name, 0.0)
    return module


def _outputs(net: Any, module: torch.nn.Module, args: Any, kwargs: Any, labels: torch.Tensor) -> tuple[float, float]:
    """The errors of the output and of the gradients of a cross entropy."""
    import gluongraph as mx
    from gluongraph import autograd

    scores = module(*args, **kwargs)
    functional.cross_entropy(scores, labels).backward()
    criterion = mx.torch.Loss(functional.cross_entropy)
    with autograd.record():
        made = net(*args, **kwargs)
        loss = criterion(made, mx.nd.array(labels.numpy(), dtype="int64"))
    loss.backward()
    expected = scores.detach().numpy()
    output = float(np.abs(made.asnumpy() - expected).max() / max(np.abs(expected).max(), 1e-30))
    grads = {n: p.grad.numpy() for n, p in module.named_parameters() if p.grad is not None}
    parameters, largest = net.collect_params(), max(np.abs(g).max() for g in grads.values())
    errors = (
        np.abs(parameters[n].grad().asnumpy() - g).max() / max(np.abs(g).max(), 1e-3 * largest)
        for n, g in grads.items()
    )
    return output, float(max(errors))
