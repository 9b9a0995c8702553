"""The twins of nets.py and transformers.py in PyTorch: the same formulas and sizes, parameters in the same order."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from gluongraph.bench.workloads import stages


def convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, relu: bool = True
) -> list[nn.Module]:
    """A convolution that keeps the size (by its stride), its batch norm and relu."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs), *([nn.ReLU()] if relu else [])]


class Residual(nn.Module):
    """relu(body(x) + shortcut(x))"""

    def __init__(self, inputs: int, channels: int, stride: int, bottleneck: int = 0):
        super().__init__()
        outputs = channels * (bottleneck or 1)
        if bottleneck:
            parts = convolution(inputs, channels, 1) + convolution(channels, channels, 3, stride)
            parts += convolution(channels, outputs, 1, relu=False)
        else:
            parts = convolution(inputs, channels, 3, stride) + convolution(channels, channels, 3, relu=False)
        self.body = nn.Sequential(*parts)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(*convolution(inputs, outputs, 1, stride, relu=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(x) + (x if self.shortcut is None else self.shortcut(x))
        return functional.relu(y)


class Layer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); norms behind the sums for an encoder."""

    def __init__(self, width: int, heads: int, encoder: bool = False):
        super().__init__()
        self.heads, self.encoder = heads, encoder
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        n, t, d = x.shape
        qkv = self.qkv(x).reshape(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=not self.encoder)
        z: torch.Tensor = self.project(y.transpose(1, 2).reshape(n, t, d))
        return z

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(functional.gelu(self.up(x)))
        return y

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.encoder:
            x = self.norm1(x + self.attention(x))
            return self.norm2(x + self.mlp(x))
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Token and position embedding, layers, one output per position."""

    def __init__(self, layers: int, width: int, heads: int, length: int, vocabulary: int, encoder: bool = False):
        super().__init__()
        self.encoder = encoder
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads, encoder) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position
        x = self.layers(self.norm(x)) if self.encoder else self.norm(self.layers(x))
        y: torch.Tensor = self.head(x)
        return y


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


class Recommender(nn.Module):
    """Dense features through an MLP, categories through embeddings, all pairs of products, an MLP."""

    def __init__(self, tables: int, rows: int, width: int, dense: int, bottom: tuple[int, ...], top: tuple[int, ...]):
        super().__init__()
        self.bottom = nn.Sequential(*layers(dense, (*bottom, width)))
        self.table = nn.Embedding(tables * rows, width)
        self.top = nn.Sequential(*layers((tables + 1) ** 2 + width, top), nn.Linear(top[-1], 1))

    def forward(self, dense: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        features = torch.cat([x[:, None], self.table(categories)], 1)
        pairs = features @ features.transpose(1, 2)
        y: torch.Tensor = self.top(torch.cat([x, pairs.flatten(1)], 1))
        return y


def layers(inputs: int, widths: tuple[int, ...]) -> list[nn.Module]:
    """Dense layers, each with relu."""
    sizes = (inputs, *widths)
    return [m for i, o in zip(sizes, widths, strict=False) for m in (nn.Linear(i, o), nn.ReLU())]


def mlp(features: int, hidden: tuple[int, ...], classes: int) -> nn.Module:
    """Dense layers with relu between."""
    return nn.Sequential(*layers(features, hidden), nn.Linear(hidden[-1], classes))


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
    parts: list[nn.Module] = []
    inputs = 1
    for outputs in channels:
        parts += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
        inputs, pixels = outputs, pixels // 2
    return nn.Sequential(*parts, nn.Flatten(), *layers(inputs * pixels**2, (hidden,)), nn.Linear(hidden, classes))


def resnet18(classes: int) -> nn.Module:
    """ResNet-18 with a 3x3 stem."""
    return _residual(32, (64, 128, 256, 512), (2, 2, 2, 2), classes)


def resnet20(pixels: int, widths: tuple[int, ...], blocks: int, classes: int) -> nn.Module:
    """Three stages of basic blocks."""
    return _residual(32, widths, (blocks,) * len(widths), classes)


def resnet50(pixels: int, widths: tuple[int, ...], blocks: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-50's bottlenecks behind a 3x3 stem, whose stride leaves 32x32 pixels."""
    return _residual(pixels, widths, blocks, classes, bottleneck=4)


def _residual(
    pixels: int, widths: tuple[int, ...], blocks: tuple[int, ...], classes: int, bottleneck: int = 0
) -> nn.Module:
    inputs = widths[0]
    parts = convolution(3, inputs, 3, pixels // 32)
    for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        for block in range(count):
            parts.append(Residual(inputs, width, 2 if stage and not block else 1, bottleneck))
            inputs = width * (bottleneck or 1)
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def mobilenet(pixels: int, first: int, plan: str, classes: int) -> nn.Module:
    """Blocks of a depthwise 3x3 and a 1x1 convolution."""
    parts, inputs = convolution(3, first, 3), first
    for outputs, stride in stages(plan):
        parts += convolution(inputs, inputs, 3, stride, groups=inputs) + convolution(inputs, outputs, 1)
        inputs = outputs
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def dcgan(noise: int, widths: tuple[int, ...], colours: int) -> nn.Module:
    """Each transposed convolution of stride 2 doubles the image."""
    parts: list[nn.Module] = []
    inputs = noise
    for stage, width in enumerate(widths):
        how = (4, 2, 1) if stage else (4,)
        parts += [nn.ConvTranspose2d(inputs, width, *how, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*parts, nn.ConvTranspose2d(inputs, colours, 4, 2, 1, bias=False), nn.Tanh())


def bert(**size: int) -> nn.Module:
    """An encoder with norms behind the sums."""
    return Transformer(encoder=True, **size)


MODELS: dict[str, Callable[..., nn.Module]] = {
    **{"mlp": mlp, "lenet": lenet, "digits": digits, "resnet18": resnet18, "resnet20": resnet20},
    **{"resnet50": resnet50, "mobilenet": mobilenet, "gpt": Transformer, "bert": bert, "lstm": Lstm},
    **{"dcgan": dcgan, "dlrm": Recommender},
}
