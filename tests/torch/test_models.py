"""Models of the zoo, trained as PyTorch trains them; `gluongraph bench --torch-models --check` goes over all of it."""

from __future__ import annotations

import importlib.util
import math
import re

import pytest

pytest.importorskip("torch")

import torch

from gluongraph.bench import torch_models, torch_zoo, torch_zoo_steps
from gluongraph.bench.interleaved_timing import Result

NAMES = (
    *("own_encoder", "own_gru", "own_lstm", "own_mlp", "own_unet"),
    *("tv_mobilenet_v3_small", "tv_resnet18", "tv_vit", "timm_ghostnet_050", "timm_deit_tiny_patch16_224"),
    *("hf_bert", "hf_gpt2", "hf_llama", "hf_t5"),
)


@pytest.mark.filterwarnings("ignore")  # of those packages
@pytest.mark.parametrize("name", NAMES)
def test_a_model(name: str) -> None:
    package = torch_zoo.package_of(name)
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    found = torch_zoo_steps.check(name, updates=3)
    assert set(found) == {*torch_models.BOUNDS, "autocast"}
    assert torch_models.Row(name, found, {}).passed, found


def test_errors_in_16_bit_may_be_those_of_pytorch() -> None:
    exact = dict.fromkeys(torch_models.BOUNDS, 0.0)
    for bf16, autocast, passes in ((0.04, 0.0, True), (0.06, 0.02, False), (0.06, 0.04, True), (0.9, 0.4, False)):
        assert torch_models.Row("own_mlp", {**exact, "bf16": bf16, "autocast": autocast}, {}).passed == passes
    assert not torch_models.Row("own_mlp", {**exact, "output": 0.1, "autocast": 1.0}, {}).passed


def test_losses_may_differ_as_those_of_pytorch_do_from_weights_that_differ_by_rounding() -> None:
    exact = dict.fromkeys(torch_models.BOUNDS, 0.0)
    for rule in ("sgd", "adamw"):
        for error, own, passes in ((5e-3, 0.0, False), (5e-3, 2e-3, False), (5e-3, 7e-3, True), (math.nan, 1.0, False)):
            found = {**exact, rule: error, f"{rule}_rounding": own}
            assert torch_models.Row("own_mlp", found, {}).passed == passes


def test_pytorch_moves_with_the_last_bits_of_its_weights() -> None:
    start = {"weight": torch.ones(100, dtype=torch.float64), "count": torch.ones(1, dtype=torch.int64)}
    moved = torch_zoo_steps._moved(start, 0)
    assert 0 < (moved["weight"] - 1).abs().max() < 1e-14 and moved["count"] is start["count"]
    assert torch_zoo_steps._largest_error([[1.0, 2.0], [1.0, math.nan]]) != 0  # NaN is no small error


def test_all_models_have_a_name_of_their_package() -> None:
    assert len(torch_zoo.ZOO) >= 50
    assert {torch_zoo.package_of(name) for name in torch_zoo.ZOO} == {"", "torchvision", "timm", "transformers"}


def test_rows_stand_below_their_heads() -> None:
    """They are printed as they are found, whatever is wider or missing in a later one."""
    names = ["own_mlp", "timm_deit_tiny_patch16_224"]
    check = {"output": 1e-16, "gradient": 2e-7, "sgd": 0.0, "adamw": 0.0, "bf16": 0.01}
    contenders = (torch_models.OWN, torch_models.EAGER, torch_models.COMPILED)

    def row(name: str, seconds: float) -> torch_models.Row:
        found = {c: Result(c, prepare_seconds=100 * seconds, blocks=[seconds], peak=int(1e10)) for c in contenders}
        return torch_models.Row(name, check, found)

    rows = [row("own_mlp", 0.00012), row(names[1], 12.3456), torch_models.Row(names[1], {**check, "output": 0.1}, {})]
    ends = [found.end() for found in re.finditer(r"\S+( \S+)*", torch_models.head(names))]
    for each in rows[:2]:
        assert [found.end() for found in re.finditer(r"\S+", torch_models.line(each, names))][1:] == ends[1:]
    failed = torch_models.line(rows[2], names)
    assert "patch16_224 FAILED" in failed and failed.index("1e-01") + 5 == ends[1]
    assert torch_models.summary(rows)[0] == "2 of 3 models computed as by PyTorch"
