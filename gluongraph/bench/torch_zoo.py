"""Models of torchvision, timm and transformers with random weights, and some written here: for tests and benchmarks.

Each is small enough to train a step in well under a second on two cores: images of 64 or 96 pixels, transformers of a
few layers. `build(name)` makes one; packages are imported then.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, cat, library, nn, randint, randn
from torch.nn import functional as F

CLASSES = 10


@dataclass(frozen=True)
class Model:
    """A module, example arguments, and how its output is made scores of classes."""

    module: nn.Module
    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor] = field(default_factory=dict)


class Scores(nn.Module):
    """The named field of what a module returns, as scores of classes (N, C): further axes are averaged."""

    def __init__(self, inner: nn.Module, output: str = ""):
        super().__init__()
        self.inner, self.output = inner, output

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        made = self.inner(*args, **kwargs)
        found: Tensor = made[self.output] if self.output else made[0] if isinstance(made, tuple) else made
        if found.dim() == 3:
            found = found.mean(1)
        return found.flatten(2).mean(2) if found.dim() > 3 else found


ZOO: dict[str, Callable[[], Model]] = {}


def model(build: Callable[[], Model]) -> Callable[[], Model]:
    """The decorated function as one of the zoo, by its name."""
    ZOO[build.__name__] = build
    return build


def build(name: str) -> Model:
    """The model of this name."""
    return ZOO[name]()


def package_of(name: str) -> str:
    """The package that a model needs beside torch; "" if none."""
    prefix = name.split("_")[0]
    return {"tv": "torchvision", "timm": "timm", "hf": "transformers"}.get(prefix, "")


# -- torchvision


def _imported(module: str) -> Any:
    """A package of models; transformers and timm import torchvision."""
    for schema in ("nms(Tensor a, Tensor b, float c) -> Tensor", "qnms(Tensor a, Tensor b, float c) -> Tensor"):
        # The binary part of torchvision may be of another build of torch; without the declaration it does not import.
        with contextlib.suppress(RuntimeError):  # declared already
            library.define(f"torchvision::{schema.partition('(')[0]}", f"({schema.partition('(')[2]}")
    return importlib.import_module(module)


def _torchvision() -> Any:
    return _imported("torchvision.models")


def _images(pixels: int, batch: int = 4) -> tuple[Tensor, ...]:
    return (randn(batch, 3, pixels, pixels),)


def _vision(name: str, pixels: int = 64, batch: int = 4, output: str = "", **settings: Any) -> None:
    def made() -> Model:
        found = getattr(_torchvision(), name)(weights=None, num_classes=CLASSES, **settings)
        return Model(Scores(found, output) if output else found, _images(pixels, batch))

    ZOO[f"tv_{name}"] = made


for _name in (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "mnasnet0_5", "mobilenet_v2",
    "mobilenet_v3_small", "regnet_y_400mf", "resnet18", "resnet50", "resnext50_32x4d", "shufflenet_v2_x0_5",
    "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11_bn",
):  # fmt: skip
    _vision(_name)
_vision("googlenet", 96, aux_logits=False, init_weights=False)
_vision("inception_v3", 96, aux_logits=False, init_weights=False)


@model
def tv_vit() -> Model:
    """A vision transformer of four layers"""
    vit = _torchvision().VisionTransformer
    return Model(vit(64, 16, 4, 4, 128, 256, num_classes=CLASSES), _images(64))


def _dense_prediction(name: str, **settings: Any) -> None:
    def made() -> Model:
        found = getattr(_imported("torchvision.models.segmentation"), name)
        net = found(weights=None, weights_backbone=None, num_classes=CLASSES, **settings)
        return Model(Scores(net, "out"), _images(64, 2))

    ZOO[f"tv_{name}"] = made


for _name in ("deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large"):
    _dense_prediction(_name)


# -- timm


def _timm(name: str, pixels: int = 64, batch: int = 4, **settings: Any) -> None:
    def made() -> Model:
        create = _imported("timm").create_model
        return Model(create(name, pretrained=False, num_classes=CLASSES, **settings), _images(pixels, batch))

    ZOO[f"timm_{name}"] = made


for _name in (
    "convmixer_768_32", "cspresnet50", "dla34", "edgenext_xx_small", "ghostnet_050",
    "hrnet_w18_small", "mobilevitv2_050", "poolformerv2_s12", "pvt_v2_b0", "repvgg_a0", "res2net50_26w_4s",
    "resnetv2_50", "rexnet_100", "selecsls42b", "tf_efficientnet_lite0", "xception41",
):  # fmt: skip
    _timm(_name)
for _name in ("cait_xxs24_224", "deit_tiny_patch16_224", "xcit_nano_12_p16_224"):
    _timm(_name, img_size=64, depth=4)
for _name in ("mixer_s32_224", "resmlp_12_224"):
    _timm(_name, img_size=64)


# -- transformers


def _tokens(batch: int = 4, length: int = 32, words: int = 1000) -> Tensor:
    return randint(2, words, (batch, length))


SMALL = {
    "vocab_size": 1000,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 256,
}


def _language(name: str, config: str, head: str, **settings: Any) -> None:
    def made() -> Model:
        hf = _imported("transformers")
        found = getattr(hf, config)(**settings)
        net = getattr(hf, head)(found)
        return Model(Scores(net, "logits"), (), {"input_ids": _tokens()})

    ZOO[f"hf_{name}"] = made


_labels = {"num_labels": CLASSES}
_language("albert", "AlbertConfig", "AlbertForSequenceClassification", **SMALL, embedding_size=64, **_labels)
_language("bert", "BertConfig", "BertForSequenceClassification", **SMALL, **_labels)
_language(
    "distilbert",
    "DistilBertConfig",
    "DistilBertForSequenceClassification",
    vocab_size=1000,
    dim=128,
    n_layers=4,
    n_heads=4,
    hidden_dim=256,
    **_labels,
)
_language("electra", "ElectraConfig", "ElectraForSequenceClassification", **SMALL, embedding_size=64, **_labels)
_language("roberta", "RobertaConfig", "RobertaForSequenceClassification", **SMALL, **_labels)
_language("gpt2", "GPT2Config", "GPT2LMHeadModel", vocab_size=1000, n_embd=128, n_layer=4, n_head=4, use_cache=False)
_language(
    "gpt_neo",
    "GPTNeoConfig",
    "GPTNeoForCausalLM",
    vocab_size=1000,
    hidden_size=128,
    num_layers=4,
    num_heads=4,
    attention_types=[[["global", "local"], 2]],
    use_cache=False,
)
_language(
    "opt",
    "OPTConfig",
    "OPTForCausalLM",
    vocab_size=1000,
    hidden_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    ffn_dim=256,
    word_embed_proj_dim=128,
    use_cache=False,
)
_language("llama", "LlamaConfig", "LlamaForCausalLM", **SMALL, num_key_value_heads=2, use_cache=False)
_language("mistral", "MistralConfig", "MistralForCausalLM", **SMALL, num_key_value_heads=2, use_cache=False)
_language("qwen2", "Qwen2Config", "Qwen2ForCausalLM", **SMALL, num_key_value_heads=2, use_cache=False)
_language("gemma", "GemmaConfig", "GemmaForCausalLM", **SMALL, num_key_value_heads=1, head_dim=32, use_cache=False)
_language("phi", "PhiConfig", "PhiForCausalLM", **SMALL, use_cache=False)
_language("gpt_neox", "GPTNeoXConfig", "GPTNeoXForCausalLM", **SMALL, use_cache=False)
_language(
    "bloom", "BloomConfig", "BloomForCausalLM", vocab_size=1000, hidden_size=128, n_layer=4, n_head=4, use_cache=False
)
_language(
    "falcon",
    "FalconConfig",
    "FalconForCausalLM",
    vocab_size=1000,
    hidden_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    use_cache=False,
)


@model
def hf_t5() -> Model:
    """An encoder and a decoder"""
    hf = _imported("transformers")
    config = hf.T5Config(vocab_size=1000, d_model=128, d_kv=32, d_ff=256, num_layers=3, num_heads=4, use_cache=False)
    net = hf.T5ForConditionalGeneration(config)
    return Model(Scores(net, "logits"), (), {"input_ids": _tokens(), "decoder_input_ids": _tokens(4, 16)})


@model
def hf_vit() -> Model:
    """A vision transformer"""
    hf = _imported("transformers")
    small = {k: v for k, v in SMALL.items() if k != "vocab_size"}
    net = hf.ViTForImageClassification(hf.ViTConfig(**small, image_size=64, patch_size=16, num_labels=CLASSES))
    return Model(Scores(net, "logits"), _images(64))


# -- written here


class Recurrent(nn.Module):
    """Two recurrent layers and a linear one, on the last step"""

    def __init__(self, kind: type[nn.RNNBase]):
        super().__init__()
        self.layers, self.out = kind(32, 128, num_layers=2, batch_first=True), nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(self.layers(x)[0][:, -1])
        return scores


@model
def own_lstm() -> Model:
    """An LSTM over 32 steps"""
    return Model(Recurrent(nn.LSTM), (randn(16, 32, 32),))


@model
def own_gru() -> Model:
    """A GRU over 32 steps"""
    return Model(Recurrent(nn.GRU), (randn(16, 32, 32),))


@model
def own_mlp() -> Model:
    """Three linear layers, with batch normalization"""
    layers = [
        nn.Linear(128, 256),
        nn.BatchNorm1d(256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.GELU(),
        nn.Linear(256, CLASSES),
    ]
    return Model(nn.Sequential(*layers), (randn(64, 128),))


@model
def own_encoder() -> Model:
    """PyTorch's own transformer encoder"""
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    return Model(
        Scores(nn.Sequential(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(128, CLASSES))),
        (randn(4, 32, 128),),
    )


class UNet(nn.Module):
    """Down and up again, with what was found on the way down"""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self._block(a, b) for a, b in ((3, 16), (16, 32), (32, 64))])
        self.up = nn.ModuleList([nn.ConvTranspose2d(a, b, 2, 2) for a, b in ((64, 32), (32, 16))])
        self.join = nn.ModuleList([self._block(a, b) for a, b in ((64, 32), (32, 16))])
        self.out = nn.Conv2d(16, CLASSES, 1)

    @staticmethod
    def _block(a: int, b: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.SiLU(), nn.Conv2d(b, b, 3, padding=1), nn.SiLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for k, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if k else x)
            found.append(x)
        for up, join, beside in zip(self.up, self.join, reversed(found[:-1]), strict=True):
            x = join(cat([up(x), beside], 1))
        scores: Tensor = self.out(x)
        return scores


@model
def own_unet() -> Model:
    """A U-Net"""
    return Model(Scores(UNet()), (randn(2, 3, 64, 64),))
