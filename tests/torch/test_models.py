"""Models of the zoo, trained as PyTorch trains them; `gluongraph bench --torch-models --check` goes over all of it."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch")

from gluongraph.bench import torch_models, torch_zoo, torch_zoo_steps

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
    assert set(found) == set(torch_models.BOUNDS)
    assert not {key: error for key, error in found.items() if error > torch_models.BOUNDS[key]}


def test_all_models_have_a_name_of_their_package() -> None:
    assert len(torch_zoo.ZOO) >= 50
    assert {torch_zoo.package_of(name) for name in torch_zoo.ZOO} == {"", "torchvision", "timm", "transformers"}
