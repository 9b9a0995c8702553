"""Modules of torch.nn: for each how it is made, and inputs for it; or why it is not tested."""

# fmt: off
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

_DRAW = torch.Generator().manual_seed(0)


def x(*shape: int) -> Any:
    """Normal numbers."""
    return torch.randn(shape, generator=_DRAW)


def i(high: int, *shape: int) -> Any:
    """Integers below a bound."""
    return torch.randint(0, high, shape, generator=_DRAW)


def p(*shape: int) -> Any:
    """Probabilities."""
    return torch.rand(shape, generator=_DRAW) * 0.9 + 0.05


def signs(*shape: int) -> Any:
    """-1 and 1."""
    return torch.randint(0, 2, shape, generator=_DRAW).float() * 2 - 1


def causal(n: int) -> Any:
    """A mask that hides what comes later."""
    return nn.Transformer.generate_square_subsequent_mask(n)


class Take(nn.Module):
    """One of the results of a module, or keywords for it."""

    def __init__(self, module: Any, which: Any = None, **kwargs: Any):
        super().__init__()
        self.module, self.which, self.kwargs = module, which, kwargs

    def forward(self, *args: Any) -> Any:
        found = self.module(*args, **self.kwargs)
        return found if self.which is None else found[self.which]


class OfOne(nn.Module):
    """Attention of an array to itself, without the weights."""

    def __init__(self, module: Any, **kwargs: Any):
        super().__init__()
        self.module, self.kwargs = module, kwargs

    def forward(self, values: Any) -> Any:
        return self.module(values, values, values, need_weights=False, **self.kwargs)[0]


class Through(nn.Module):
    """A loss of log-softmax."""

    def __init__(self, loss: Any, dim: int = 1):
        super().__init__()
        self.loss, self.dim = loss, dim

    def forward(self, logits: Any, *args: Any) -> Any:
        return self.loss(functional.log_softmax(logits, self.dim), *args)


class Unpooled(nn.Module):
    """Pooled with the places of the maxima, and back."""

    def __init__(self, axes: int):
        super().__init__()
        pools = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
        unpools = (nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d)
        self.pool, self.unpool = pools[axes - 1](2, return_indices=True), unpools[axes - 1](2)

    def forward(self, values: Any) -> Any:
        return self.unpool(*self.pool(values), output_size=values.shape[2:])


Case = tuple[Callable[[], Any], tuple[Any, ...]]
# Inputs of the modules that take one array; several modules have the same.
FLAT, ROWS = (x(4, 6),), (x(2, 5, 6),)
LINES, IMAGES, VOLUMES = (x(2, 4, 9),), (x(2, 4, 7, 8),), (x(1, 2, 4, 5, 6),)
CLASSES = (x(4, 5), i(5, 4))
_ONE_INPUT: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("ELU", "CELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU"), FLAT),
    **dict.fromkeys(("LogSigmoid", "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink"),
    FLAT),
    **dict.fromkeys(("Softsign", "Tanh", "Tanhshrink", "Identity", "Flatten", "PReLU", "GLU"), FLAT),
}
CASES: dict[str, list[Case]] = {name: [(getattr(nn, name), args)] for name, args in _ONE_INPUT.items()}


def case(name: str, make: Callable[[], Any], *args: Any) -> None:
    """One more case of a module."""
    CASES.setdefault(name, []).append((make, args))


case("GELU", lambda: nn.GELU("tanh"), *FLAT)
case("PReLU", lambda: nn.PReLU(4), *IMAGES)
case("Threshold", lambda: nn.Threshold(0.1, 3.0), *FLAT)
for _name in ("Softmax", "LogSoftmax", "Softmin"):
    case(_name, partial(getattr(nn, _name), dim=1), *ROWS)
case("Softmax2d", nn.Softmax2d, *IMAGES)
case("RReLU", nn.RReLU, *FLAT)
case("Unflatten", lambda: nn.Unflatten(1, (2, 3)), *FLAT)
case("Sequential", lambda: nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 2)), *FLAT)
case("Linear", lambda: nn.Linear(6, 3), *FLAT)
case("Linear", lambda: nn.Linear(6, 3, bias=False), *ROWS)
case("Bilinear", lambda: nn.Bilinear(3, 4, 5), x(2, 3), x(2, 4))
case("LazyLinear", lambda: made(nn.LazyLinear(3), FLAT), *FLAT)

# -- convolutions and pooling

for _axes, _input in ((1, LINES), (2, IMAGES), (3, VOLUMES)):
    _n = _input[0].shape[1]
    for _way, _kwargs in (({}, {"padding": 1, "stride": 2}), ({}, {"padding": "same", "dilation": 2, "groups": 2}),
         ({}, {"padding": 2, "padding_mode": "reflect"}),
                          ({}, {"padding": 1, "padding_mode": "circular"}), ({}, {"padding": 1,
                               "padding_mode": "replicate", "bias": False})):
        case(f"Conv{_axes}d", lambda a=_axes, n=_n, k=_kwargs: getattr(nn, f"Conv{a}d")(n, 4, 3, **k), *_input)
    case(f"ConvTranspose{_axes}d", lambda a=_axes, n=_n: getattr(nn, f"ConvTranspose{a}d")(n, 4, 3, stride=2,
         padding=1, output_padding=1), *_input)
    case(f"ConvTranspose{_axes}d", lambda a=_axes, n=_n: getattr(nn, f"ConvTranspose{a}d")(n, 4, 2, groups=2,
         dilation=2, bias=False), *_input)
    case(f"LazyConv{_axes}d", lambda a=_axes, v=_input: made(getattr(nn, f"LazyConv{a}d")(4, 3), v), *_input)
    case(f"LazyConvTranspose{_axes}d", lambda a=_axes, v=_input: made(getattr(nn, f"LazyConvTranspose{a}d")(4, 3),
         v), *_input)
    case(f"MaxPool{_axes}d", lambda a=_axes: getattr(nn, f"MaxPool{a}d")(2), *_input)
    case(f"MaxPool{_axes}d", lambda a=_axes: getattr(nn, f"MaxPool{a}d")(3, 2, 1, ceil_mode=True), *_input)
    case(f"MaxPool{_axes}d", lambda a=_axes: getattr(nn, f"MaxPool{a}d")(2, 1, 0, dilation=2, return_indices=True),
         *_input)
    case(f"AvgPool{_axes}d", lambda a=_axes: getattr(nn, f"AvgPool{a}d")(3, 2, 1, ceil_mode=True,
         count_include_pad=False), *_input)
    case(f"AvgPool{_axes}d", lambda a=_axes: getattr(nn, f"AvgPool{a}d")(2), *_input)
    case(f"LPPool{_axes}d", lambda a=_axes: getattr(nn, f"LPPool{a}d")(2, 2), *_input)
    case(f"AdaptiveAvgPool{_axes}d", lambda a=_axes: getattr(nn, f"AdaptiveAvgPool{a}d")(3), *_input)
    case(f"AdaptiveMaxPool{_axes}d", lambda a=_axes: getattr(nn, f"AdaptiveMaxPool{a}d")(3), *_input)
    case(f"AdaptiveMaxPool{_axes}d", lambda a=_axes: getattr(nn, f"AdaptiveMaxPool{a}d")(2, return_indices=True),
         *_input)
    case(f"MaxUnpool{_axes}d", lambda a=_axes: Unpooled(a), *_input)
    for _kind in ("Reflection", "Replication", "Circular", "Zero"):
        case(f"{_kind}Pad{_axes}d", lambda a=_axes, k=_kind: getattr(nn, f"{k}Pad{a}d")(1), *_input)
    case(f"ConstantPad{_axes}d", lambda a=_axes: getattr(nn, f"ConstantPad{a}d")(1, 0.5), *_input)
    case(f"BatchNorm{_axes}d", lambda a=_axes, n=_n: getattr(nn, f"BatchNorm{a}d")(n), *_input)
    case(f"BatchNorm{_axes}d", lambda a=_axes, n=_n: getattr(nn, f"BatchNorm{a}d")(n, momentum=0.3), *_input)
    case(f"BatchNorm{_axes}d", lambda a=_axes, n=_n: getattr(nn, f"BatchNorm{a}d")(n, affine=False,
         track_running_stats=False), *_input)
    case(f"LazyBatchNorm{_axes}d", lambda a=_axes, v=_input: made(getattr(nn, f"LazyBatchNorm{a}d")(), v), *_input)
    case(f"InstanceNorm{_axes}d", lambda a=_axes, n=_n: getattr(nn, f"InstanceNorm{a}d")(n), *_input)
    case(f"InstanceNorm{_axes}d", lambda a=_axes, n=_n: getattr(nn, f"InstanceNorm{a}d")(n, affine=True,
         track_running_stats=True), *_input)
    case(f"LazyInstanceNorm{_axes}d", lambda a=_axes, v=_input: made(getattr(nn,
         f"LazyInstanceNorm{a}d")(affine=True), v), *_input)
case("BatchNorm1d", lambda: nn.BatchNorm1d(6), *FLAT)
case("Fold", lambda: nn.Fold((4, 5), (2, 2), padding=1, stride=2), x(1, 8, 9))
case("Unfold", lambda: nn.Unfold((2, 3), padding=1, stride=2), *IMAGES)
case("PixelShuffle", lambda: nn.PixelShuffle(2), *IMAGES)
case("PixelUnshuffle", lambda: nn.PixelUnshuffle(2), x(2, 3, 4, 6))
case("ChannelShuffle", lambda: nn.ChannelShuffle(2), *IMAGES)
for _mode, _input in (("nearest", LINES), ("nearest", IMAGES), ("nearest", VOLUMES), ("linear", LINES), ("bilinear",
     IMAGES), ("bicubic", IMAGES), ("trilinear", VOLUMES),
                      ("nearest-exact", IMAGES)):
    case("Upsample", lambda m=_mode: nn.Upsample(scale_factor=2, mode=m), *_input)
    case("Upsample", lambda m=_mode, v=_input: nn.Upsample(size=[5] * (v[0].dim() - 2), mode=m), *_input)
case("Upsample", lambda: nn.Upsample(scale_factor=1.5, mode="bilinear", align_corners=True), *IMAGES)
case("Upsample", lambda: nn.Upsample(scale_factor=1.7, mode="bicubic", recompute_scale_factor=True), *IMAGES)
case("UpsamplingBilinear2d", lambda: nn.UpsamplingBilinear2d(scale_factor=2), *IMAGES)
case("UpsamplingNearest2d", lambda: nn.UpsamplingNearest2d(scale_factor=2), *IMAGES)

# -- normalization

case("LayerNorm", lambda: nn.LayerNorm(6), *ROWS)
case("LayerNorm", lambda: nn.LayerNorm((5, 6), elementwise_affine=False), *ROWS)
case("RMSNorm", lambda: nn.RMSNorm(6), *ROWS)
case("GroupNorm", lambda: nn.GroupNorm(2, 4), *IMAGES)
case("LocalResponseNorm", lambda: nn.LocalResponseNorm(3), *IMAGES)

# -- dropout: only when predicting are the numbers PyTorch's

for _name, _input in (("Dropout", FLAT), ("AlphaDropout", FLAT), ("FeatureAlphaDropout", IMAGES), ("Dropout1d",
     LINES), ("Dropout2d", IMAGES), ("Dropout3d", VOLUMES)):
    case(_name, getattr(nn, _name), *_input)

# -- embeddings, recurrent layers, attention

case("Embedding", lambda: nn.Embedding(7, 3, padding_idx=1), i(7, 4, 2))
case("Embedding", lambda: nn.Embedding(7, 3, scale_grad_by_freq=True), torch.tensor([1, 1, 2]))
for _mode in ("sum", "mean", "max"):
    case("EmbeddingBag", lambda m=_mode: nn.EmbeddingBag(7, 3, mode=m), i(7, 4, 3))
    case("EmbeddingBag", lambda m=_mode: nn.EmbeddingBag(7, 3, mode=m, padding_idx=2), torch.tensor([1, 2, 5, 5,
         0]), torch.tensor([0, 2, 2]))
for _name in ("RNN", "LSTM", "GRU"):
    case(_name, partial(getattr(nn, _name), 3, 4), x(5, 2, 3))
    case(_name, partial(getattr(nn, _name), 3, 4, num_layers=2, bidirectional=True, batch_first=True), x(2, 5, 3))
    case(f"{_name}Cell", partial(getattr(nn, f"{_name}Cell"), 3, 4), x(2, 3))
case("RNN", lambda: nn.RNN(3, 4, nonlinearity="relu", bias=False), x(5, 3))
case("LSTM", lambda: nn.LSTM(3, 4, proj_size=2), x(5, 2, 3), (x(1, 2, 2), x(1, 2, 4)))
_ATTENTION = (x(2, 5, 8), x(2, 4, 8), x(2, 4, 8))
case("MultiheadAttention", lambda: nn.MultiheadAttention(8, 2, batch_first=True), *_ATTENTION)
case("MultiheadAttention", lambda: Take(nn.MultiheadAttention(8, 2, batch_first=True), 0, need_weights=False),
     *_ATTENTION)
case("MultiheadAttention", lambda: OfOne(nn.MultiheadAttention(8, 2, batch_first=True), attn_mask=causal(5)), x(2,
     5, 8))
case("MultiheadAttention", lambda: nn.MultiheadAttention(8, 2, kdim=3, vdim=4, add_bias_kv=True), x(5, 2, 8), x(4,
     2, 3), x(4, 2, 4))
_LAYER: dict[str, Any] = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "dropout": 0.0, "batch_first": True}
case("TransformerEncoderLayer", lambda: nn.TransformerEncoderLayer(**_LAYER), x(2, 5, 8))
case("TransformerEncoderLayer", lambda: nn.TransformerEncoderLayer(**_LAYER, norm_first=True, activation="gelu"),
     x(2, 5, 8))
case("TransformerDecoderLayer", lambda: nn.TransformerDecoderLayer(**_LAYER), x(2, 5, 8), x(2, 4, 8))
case("TransformerEncoder", lambda: Take(nn.TransformerEncoder(nn.TransformerEncoderLayer(**_LAYER), 2,
     enable_nested_tensor=False), mask=causal(5)), x(2, 5, 8))
case("TransformerDecoder", lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(**_LAYER), 2), x(2, 5, 8), x(2,
     4, 8))
case("Transformer", lambda: nn.Transformer(num_encoder_layers=1, num_decoder_layers=1, **_LAYER), x(2, 4, 8), x(2,
     5, 8))

# -- distances and losses

case("CosineSimilarity", nn.CosineSimilarity, x(4, 3), x(4, 3))
case("PairwiseDistance", nn.PairwiseDistance, x(4, 3), x(4, 3))
for _name in ("L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss"):
    for _how in ("mean", "sum", "none"):
        case(_name, partial(getattr(nn, _name), reduction=_how), x(4, 3), x(4, 3))
case("BCELoss", nn.BCELoss, p(4, 3), p(4, 3))
case("BCEWithLogitsLoss", lambda: nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 3.0])), x(4, 3), p(4, 3))
case("CrossEntropyLoss", nn.CrossEntropyLoss, *CLASSES)
case("CrossEntropyLoss", lambda: nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=1, weight=torch.tensor([1.0,
     2.0, 3.0, 1.0, 0.5])), *CLASSES)
case("CrossEntropyLoss", nn.CrossEntropyLoss, x(2, 5, 3, 4), i(5, 2, 3, 4))
case("CrossEntropyLoss", nn.CrossEntropyLoss, x(4, 5), p(4, 5))
case("NLLLoss", lambda: Through(nn.NLLLoss()), *CLASSES)
case("NLLLoss2d", lambda: Through(nn.NLLLoss2d()), x(2, 5, 3, 4), i(5, 2, 3, 4))
case("CTCLoss", lambda: Through(nn.CTCLoss(), 2), x(6, 2, 5), torch.tensor([[1, 2, 2], [3, 4, 0]]), (6, 5), (3, 2))
case("CTCLoss", lambda: Through(nn.CTCLoss(zero_infinity=True), 2), x(6, 2, 5), torch.tensor([[1, 2, 2], [3, 4,
     0]]), torch.tensor([6, 1]), torch.tensor([3, 2]))
case("CTCLoss", lambda: Through(nn.CTCLoss(reduction="sum", blank=4), 1), x(6, 5), torch.tensor([1, 2, 2]), (6,),
     (3,))
case("CosineEmbeddingLoss", nn.CosineEmbeddingLoss, x(4, 3), x(4, 3), signs(4))
case("GaussianNLLLoss", nn.GaussianNLLLoss, x(4, 3), x(4, 3), p(4, 3))
case("GaussianNLLLoss", lambda: nn.GaussianNLLLoss(full=True, reduction="sum"), x(4, 3), x(4, 3), p(4, 1))
case("HingeEmbeddingLoss", nn.HingeEmbeddingLoss, x(4, 3), signs(4, 3))
case("KLDivLoss", lambda: nn.KLDivLoss(reduction="batchmean"), x(4, 3), p(4, 3))
case("KLDivLoss", lambda: nn.KLDivLoss(reduction="sum", log_target=True), x(4, 3), x(4, 3))
case("LinearCrossEntropyLoss", lambda: nn.LinearCrossEntropyLoss(6, 5), x(4, 6), i(5, 4))
case("MarginRankingLoss", lambda: nn.MarginRankingLoss(0.3), x(4), x(4), signs(4))
case("MultiLabelMarginLoss", nn.MultiLabelMarginLoss, x(2, 4), torch.tensor([[3, 0, -1, 1], [2, -1, 0, 0]]))
case("MultiLabelSoftMarginLoss", nn.MultiLabelSoftMarginLoss, x(4, 3), i(2, 4, 3).float())
case("MultiMarginLoss", nn.MultiMarginLoss, *CLASSES)
case("PoissonNLLLoss", lambda: nn.PoissonNLLLoss(full=True), x(4, 3), p(4, 3) * 4)
case("SoftMarginLoss", nn.SoftMarginLoss, x(4, 3), signs(4, 3).long())  # PyTorch has no gradient for the target
case("TripletMarginLoss", lambda: nn.TripletMarginLoss(swap=True), x(4, 3), x(4, 3), x(4, 3))
case("TripletMarginWithDistanceLoss", nn.TripletMarginWithDistanceLoss, x(4, 3), x(4, 3), x(4, 3))


def made(module: Any, args: tuple[Any, ...]) -> Any:
    """A lazy module with the shapes that its first call gives it."""
    module(*args)
    return module


_CONTAINER = "holds others, and has no forward"
LEFT_OUT = {
    **dict.fromkeys(("Module", "Container", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList"),
    _CONTAINER),
    **dict.fromkeys(("RNNBase", "RNNCellBase"), "what RNN, LSTM, GRU and their cells are made of"),
    "DataParallel": "one process has one device",
    "SyncBatchNorm": "runs on GPUs of several processes only",
    "FractionalMaxPool2d": "its windows are drawn at random: REFUSED has it",
    "FractionalMaxPool3d": "its windows are drawn at random: REFUSED has it",
    "AdaptiveLogSoftmaxWithLoss": "the shapes of its parts depend on the labels: torch.export does not trace it",
    "CrossMapLRN2d": "an autograd.Function that calls legacy code: LocalResponseNorm is the same",
}
# In training these draw, so that numbers differ from PyTorch's; tests of rows look at their distribution.
DRAWS = {"RReLU", "Dropout", "AlphaDropout", "FeatureAlphaDropout", "Dropout1d", "Dropout2d", "Dropout3d"}
