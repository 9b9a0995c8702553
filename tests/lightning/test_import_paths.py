"""Names that scripts import from Lightning's modules: the same paths below gluongraph.lightning, and what they are."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from typing import Any

import pytest
from nets import QUIET, GluonModel, loader

import gluongraph.lightning as L
from gluongraph.lightning.accelerators import CPUAccelerator, CUDAAccelerator
from gluongraph.lightning.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus

PATHS = {
    "accelerators": "Accelerator CPUAccelerator CUDAAccelerator",
    "callbacks.rich_model_summary": "RichModelSummary",
    "callbacks.stochastic_weight_avg": "StochasticWeightAveraging",
    "core": "LightningDataModule LightningModule",
    "core.datamodule": "LightningDataModule",
    "core.hooks": "DataHooks ModelHooks",
    "core.mixins": "HyperparametersMixin",
    "core.module": "LightningModule",
    "core.optimizer": "LightningOptimizer",
    "core.saving": "load_hparams_from_yaml save_hparams_to_yaml",
    "trainer": "Trainer seed_everything",
    "utilities": "AttributeDict CombinedLoader grad_norm measure_flops rank_zero_only",
    "trainer.states": "RunningStage TrainerFn TrainerState TrainerStatus",
    "trainer.trainer": "Trainer",
    "utilities.model_summary": "LayerSummary ModelSummary get_formatted_model_size get_human_readable_count summarize",
    "utilities.parsing": "AttributeDict",
    "utilities.seed": "isolate_rng",
    "utilities.warnings": "PossibleUserWarning",
}


@pytest.mark.parametrize("path", PATHS)
def test_a_path_of_lightning(path: str) -> None:
    module = importlib.import_module(f"gluongraph.lightning.{path}")
    names = PATHS[path].split()
    assert all(hasattr(module, name) for name in names)
    if importlib.util.find_spec("lightning") is not None:
        theirs = importlib.import_module(f"lightning.pytorch.{path}")
        assert all(hasattr(theirs, name) for name in names)


def test_modules_are_attributes() -> None:
    """Without an import of each: in a process of its own, where no test has imported them."""
    paths = [path for path in PATHS if "." in path]
    script = f"import gluongraph.lightning as L\n{chr(10).join(f'L.{path}' for path in paths)}"
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = L.utilities.nothing


ENUMS = (TrainerFn, RunningStage, TrainerStatus)


def test_the_state_of_a_trainer() -> None:
    seen: list[tuple[Any, Any, Any]] = []

    class Looks(L.Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            state = trainer.state
            seen.append((state.fn, state.stage, state.status))

        def on_validation_start(self, trainer: Any, module: Any) -> None:
            assert trainer.state.stage.evaluating and trainer.state.stage.dataloader_prefix == "val"
            self.on_train_batch_start(trainer, module, None, 0)

    trainer = L.Trainer(max_epochs=1, limit_train_batches=1, callbacks=[Looks()], **QUIET)
    assert trainer.state == TrainerState() and not trainer.state.finished
    trainer.fit(GluonModel(), loader(), loader(8))
    assert [stage for _, stage, _ in seen] == ["sanity_check", "train", "validate"]
    assert [stage for _, stage, _ in seen] == [*map(RunningStage, ("sanity_check", "train", "validate"))]
    for each in seen:
        assert tuple(map(type, each)) == ENUMS and each[0] == TrainerFn.FITTING == "fit" and str(each[2]) == "running"
    assert trainer.state.status is TrainerStatus.FINISHED and trainer.state.stopped and trainer.state.stage is None
    trainer.validate(dataloaders=loader(8), model=trainer.model, verbose=False)
    assert trainer.state.fn is TrainerFn.VALIDATING and seen[-1][1] is RunningStage.VALIDATING


def test_the_state_has_lightnings_values() -> None:
    theirs = pytest.importorskip("lightning.pytorch.trainer.states")
    for ours in ENUMS:
        other = getattr(theirs, ours.__name__)
        assert {each.name: each.value for each in ours} == {each.name: each.value for each in other}
        assert all(each == getattr(other, each.name) for each in ours)


def test_accelerators_as_objects() -> None:
    trainer = L.Trainer(max_epochs=1, accelerator=CPUAccelerator(), **QUIET)
    assert trainer.target == "cpu" and isinstance(trainer.accelerator, CPUAccelerator)
    assert type(L.Trainer(max_epochs=1, accelerator="cpu", **QUIET).accelerator) is CPUAccelerator
    assert CPUAccelerator.is_available() and CPUAccelerator.auto_device_count() == 1
    if not CUDAAccelerator.is_available():
        with pytest.raises(L.MisconfigurationException, match=r"accelerator=CUDAAccelerator\(\): no NVIDIA GPU"):
            L.Trainer(max_epochs=1, accelerator=CUDAAccelerator(), **QUIET)


@pytest.mark.parametrize(
    ("path", "name", "said"),
    [
        ("accelerators", "MPSAccelerator", "NVIDIA's GPUs"),
        ("plugins", "MixedPrecision", "bf16-mixed"),
        ("plugins", "CheckpointIO", "one format"),
        ("callbacks", "SpikeDetection", "detect_anomaly"),
        ("callbacks", "ModelPruning", "between two fits"),
        ("callbacks", "BatchSizeFinder", "memory"),
        ("callbacks", "LearningRateFinder", "lr_find"),
    ],
)
def test_what_does_not_exist(path: str, name: str, said: str) -> None:
    with pytest.raises(ImportError, match=said):
        exec(f"from gluongraph.lightning.{path} import {name}")


@pytest.mark.parametrize(("precision", "name"), [("64-true", "float64"), ("bf16-true", "bfloat16"), ("32", "float32")])
def test_init_module(precision: str, name: str) -> None:
    torch = pytest.importorskip("torch")
    with L.Trainer(max_epochs=1, precision=precision, **QUIET).init_module(empty_init=True):
        layer = torch.nn.Linear(2, 1)
    assert layer.weight.dtype is getattr(torch, name) and torch.get_default_dtype() is torch.float32
