"""PyTorch's side of the benchmarks: the same models, eager with a fused optimizer, or through torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from workloads import Workload, batches, update_shapes


class Residual(nn.Module):
    """relu(bn(conv(relu(bn(conv(x))))) + shortcut(x)), the basic block of ResNet-18."""

    def __init__(self, inputs: int, channels: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut: nn.Module | None = None
        if stride != 1 or inputs != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(x) + (x if self.shortcut is None else self.shortcut(x))
        return functional.relu(y)


class Layer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(n, t, d))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Token and position embedding, causal layers, one output per position."""

    def __init__(self, layers: int, width: int, heads: int, length: int, vocabulary: int):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(self.token(tokens) + self.position)
        return self.head(self.norm(y))


class Lstm(nn.Module):
    """A word-level language model: embedding, LSTM layers, one output per position."""

    def __init__(self, layers: int, width: int, length: int, vocabulary: int):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.lstm(self.token(tokens))[0])
        return y


def mlp(features: int, hidden: tuple[int, ...], classes: int) -> nn.Module:
    """Dense layers with relu between."""
    sizes = (features, *hidden)
    layers = [m for i, o in zip(sizes, hidden, strict=False) for m in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], classes))


def lenet(pixels: int, channels: tuple[int, int], hidden: int, classes: int) -> nn.Module:
    """Two convolutions of 5x5 with pooling, two dense layers."""
    first, second = channels
    side = ((pixels - 4) // 2 - 4) // 2
    return nn.Sequential(
        *(nn.Conv2d(1, first, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(second * side * side, hidden), nn.ReLU(), nn.Linear(hidden, classes)),
    )


def digits(pixels: int, channels: tuple[int, ...], hidden: int, classes: int) -> nn.Module:
    """Convolution, normalization and pooling, then two dense layers."""
    layers: list[nn.Module] = []
    inputs = 1
    for outputs in channels:
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
        inputs, pixels = outputs, pixels // 2
    layers += [nn.Flatten(), nn.Linear(inputs * pixels**2, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
    return nn.Sequential(*layers)


def resnet18(classes: int) -> nn.Module:
    """ResNet-18 with a 3x3 stem, as it is used on 32x32 images."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(inputs, channels, stride), Residual(channels, channels, 1)]
        inputs = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "lenet": lenet,
    "digits": digits,
    "resnet18": resnet18,
    "gpt": Gpt,
    "lstm": Lstm,
}


OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    **{"sgd": torch.optim.SGD, "nag": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW},
    **{"adamax": torch.optim.Adamax, "nadam": torch.optim.NAdam, "adagrad": torch.optim.Adagrad},
    **{"rmsprop": torch.optim.RMSprop, "adadelta": torch.optim.Adadelta},
}
FUSED = ("sgd", "nag", "adam", "adamw", "adagrad")


def optimizer(
    workload: Workload, parameters: list[torch.Tensor], fused: bool = True, foreach: bool | None = None
) -> torch.optim.Optimizer:
    """The workload's optimizer in PyTorch's names."""
    name, hyper = workload.optimizer, dict(workload.hyper)
    if name not in OPTIMIZERS or (fused and name not in FUSED):
        raise SystemExit(f"PyTorch has no {'fused ' if name in OPTIMIZERS else ''}{name}")
    given: dict[str, Any] = {"lr": hyper["learning_rate"], "weight_decay": hyper.get("wd", 0.0)}
    given |= {key: hyper[key] for key in ("momentum", "centered") if key in hyper}
    given |= {"nesterov": True} if name == "nag" else {}
    given |= {"fused": True} if fused else {"foreach": foreach}
    return OPTIMIZERS[name](parameters, **given)


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over all positions; classes are the last axis."""
    return functional.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), labels.reshape(-1))


def contender(workload: Workload, threads: int, compiled: bool) -> Callable[[], Any]:
    """A function that takes one training step and returns the loss."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if workload.model == "update":
        return update(workload, threads, compiled=compiled)
    net = MODELS[workload.model](**workload.size)
    trainer = optimizer(workload, list(net.parameters()))

    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(net(x), y)

    if compiled:
        forward = torch.compile(forward)
    data = cycle([(torch.from_numpy(x), torch.from_numpy(y).long()) for x, y in batches(workload)])

    def step() -> Any:
        x, y = next(data)
        trainer.zero_grad(set_to_none=True)
        loss = forward(x, y)
        loss.backward()
        trainer.step()
        return loss.detach()

    return step


def update(workload: Workload, threads: int, compiled: bool = False, foreach: bool = False) -> Callable[[], Any]:
    """The optimizer alone, on gradients that are there: fused, by lists of tensors, or compiled."""
    torch.set_num_threads(threads)
    parameters = [torch.randn(shape).requires_grad_() for shape in update_shapes(workload)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    if workload.optimizer == "sgld":
        return _langevin(parameters, workload.hyper["learning_rate"])
    trainer = optimizer(workload, parameters, fused=not compiled and not foreach, foreach=foreach or None)
    update = torch.compile(trainer.step) if compiled else trainer.step

    def step() -> Any:
        update()
        return parameters[-1].detach()

    return step


@torch.no_grad()
def _noise(tensors: list[torch.Tensor]) -> None:
    for each in tensors:
        each.normal_()


def _langevin(parameters: list[torch.Tensor], rate: float) -> Callable[[], Any]:
    """w = w - rate/2 g + sqrt(rate) e, as one writes it with PyTorch: normal_, then the update by lists."""
    weights = [p.detach() for p in parameters]
    grads, noise = [p.grad for p in parameters if p.grad is not None], [torch.empty_like(w) for w in weights]

    def step() -> Any:
        _noise(noise)
        torch._foreach_add_(weights, grads, alpha=-rate / 2)
        torch._foreach_add_(weights, noise, alpha=rate**0.5)
        return weights[-1]

    return step
