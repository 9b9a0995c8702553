"""Arguments of a Trainer, and what hooks give, that mean nothing: a sentence with the way out."""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import numpy as np
import pytest
from nets import QUIET, GluonModel, loader, same, weights

import gluongraph as mx
import gluongraph.lightning as L
from gluongraph import gluon
from gluongraph.lightning.callbacks import ModelCheckpoint

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"accelerator": "tpu"}, "no code generation"),
    ({"accelerator": "mps"}, "no code generation"),
    ({"accelerator": "abacus"}, "there are 'auto'"),
    ({"strategy": "ddp_spawn"}, "not forked"),
    ({"strategy": "pipeline"}, "there are 'auto'"),
    ({"devices": 0}, "number from 1 on"),
    ({"devices": "many"}, "number from 1 on"),
    ({"precision": "8-true"}, "there are '32'"),
    ({"precision": "transformer-engine"}, "there are '32'"),
    ({"max_epochs": -2}, "max_epochs"),
    ({"max_steps": 1.5}, "max_steps"),
    ({"max_time": "1 hour"}, "DD:HH:MM:SS"),
    ({"limit_train_batches": 1.5}, "share from 0.0 to 1.0"),
    ({"limit_val_batches": -1}, "share from 0.0 to 1.0"),
    ({"overfit_batches": "few"}, "share from 0.0 to 1.0"),
    ({"val_check_interval": 1.5}, "share of the epoch"),
    ({"val_check_interval": 0}, "a number of batches; not 0"),
    ({"val_check_interval": 0.5, "check_val_every_n_epoch": None}, "give a number of batches"),
    ({"val_check_interval": "0 steps"}, 'as "10 steps"'),
    ({"val_check_interval": "10 epochs"}, '"10 steps"'),
    ({"log_every_n_steps": "10 batches"}, "counted in updates"),
    ({"log_every_n_steps": "10 epochs"}, "log_every_n_steps"),
    ({"check_val_every_n_epoch": 0}, "check_val_every_n_epoch"),
    ({"num_sanity_val_steps": -2}, "num_sanity_val_steps"),
    ({"log_every_n_steps": -1}, "log_every_n_steps"),
    ({"accumulate_grad_batches": 0}, "accumulate_grad_batches"),
    ({"gradient_clip_val": -1}, "gradient_clip_val"),
    ({"gradient_clip_val": 1.0, "gradient_clip_algorithm": "l1"}, "'norm' and 'value'"),
    ({"gradient_clip_norm_type": 0}, 'a number above 0, or "inf"'),
    ({"gradient_clip_norm_type": "max"}, 'a number above 0, or "inf"'),
    (
        {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value", "gradient_clip_norm_type": 1},
        "bounds each element",
    ),
    ({"barebones": True, "log_every_n_steps": 1}, "leave one of them out"),
    ({"barebones": True, "profiler": "simple"}, "leave one of them out"),
    ({"barebones": True, "enable_checkpointing": True}, "leave one of them out"),
    ({"profiler": "gprof"}, "there is none of that name"),
    ({"plugins": ["x"]}, "leave them out"),
    ({"eager": "False"}, "eager is True or False, not 'False'"),
    ({"enable_progress_bar": "no"}, "enable_progress_bar is True or False"),
    ({"deterministic": "always"}, "deterministic is True or False"),
    ({"fast_dev_run": 1.5}, "fast_dev_run is a whole number from 0 on, or True or False, not 1.5"),
    ({"fast_dev_run": "yes"}, "fast_dev_run is a whole number"),
    ({"default_root_dir": 3}, "default_root_dir is a path, not 3"),
    ({"steps_per_call": 0}, "steps_per_call"),
    ({"callbacks": ["EarlyStopping"]}, "no Callback"),
    ({"logger": ["csv"]}, "no logger"),
    ({"logger": "csv"}, "'csv' is no logger"),
    ({"callbacks": [ModelCheckpoint()], "enable_checkpointing": False}, "leave one of them out"),
    (
        {"callbacks": [L.callbacks.TQDMProgressBar(), L.callbacks.TQDMProgressBar()], "enable_progress_bar": None},
        "2 progress bars: TQDMProgressBar, TQDMProgressBar",
    ),
]


@pytest.mark.parametrize(("how", "said"), WRONG)
def test_an_argument_that_means_nothing(how: dict[str, Any], said: str) -> None:
    with pytest.raises(L.MisconfigurationException, match=said):
        L.Trainer(**{**QUIET, "enable_checkpointing": None, **how})


ACCEPTED: list[dict[str, Any]] = [
    {"benchmark": True},
    {"deterministic": "warn"},
    {"enable_autolog_hparams": False},
    {"inference_mode": False},
    {"num_nodes": 1},
    {"profiler": "advanced"},
    {"profiler": "pytorch"},
    {"profiler": "simple"},
    {"reload_dataloaders_every_n_epochs": 1},
    {"sync_batchnorm": True},
]


@pytest.mark.parametrize("how", ACCEPTED, ids=str)
def test_an_argument_that_leaves_the_training_as_it_is(how: dict[str, Any]) -> None:
    models = [GluonModel(), GluonModel()]
    for model, options in zip(models, ({}, how), strict=True):
        mx.random.seed(1)
        L.Trainer(max_epochs=2, **QUIET, **options).fit(model, loader(), loader(16))
    assert same(*map(weights, models))


def test_barebones_leaves_out_what_is_not_training(tmp_path: pathlib.Path) -> None:
    trainer = L.Trainer(max_epochs=2, barebones=True, default_root_dir=tmp_path)
    trainer.fit(GluonModel(), loader(), loader(16))
    assert trainer.num_sanity_val_steps == 0
    assert trainer.global_step == 10 and not trainer.callbacks and not trainer.loggers and not [*tmp_path.iterdir()]


def test_an_unknown_argument() -> None:
    with pytest.raises(TypeError, match=r"(?s)no argument 'max_epoch'.*test_arguments.py.*did you mean max_epochs=\?"):
        L.Trainer(max_epoch=3)  # type: ignore[call-arg]


class Sized(GluonModel):
    def __init__(self, rate: Any = 0.01, keys: Any = None):
        super().__init__()
        self.save_hyperparameters()


class Batches(L.LightningDataModule):
    def __init__(self, rate: Any = 0.01, keys: Any = None):
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self) -> Any:
        return loader()


def test_hyperparameters_of_module_and_data_module_that_differ(tmp_path: pathlib.Path) -> None:
    keys = np.arange(3)  # the same array, which cannot be compared by !=
    how = {**QUIET, "max_epochs": 1, "logger": L.loggers.CSVLogger(tmp_path), "log_every_n_steps": 1}
    L.Trainer(**how).fit(Sized(0.02, keys), datamodule=Batches(0.02, keys))
    with pytest.raises(L.MisconfigurationException, match=r"'rate' is 0\.1 in Sized and 0\.3 in Batches") as error:
        L.Trainer(**how).fit(Sized(0.1), datamodule=Batches(0.3))
    assert "save_hyperparameters(ignore='rate')" in str(error.value)
    with pytest.raises(L.MisconfigurationException, match="'keys'"):
        L.Trainer(**how).fit(Sized(keys=keys), datamodule=Batches(keys=keys + 1))
    L.Trainer(**how, enable_autolog_hparams=False).fit(Sized(0.1), datamodule=Batches(0.3))


FORMS: list[tuple[Any, str]] = [
    (7, "gave int"),
    ([], "gave a list of nothing"),
    ({"optimizer": "adam"}, "\"optimizer\": 'adam'"),
    ([mx.optimizer.Adam(), mx.optimizer.SGD()], "2 optimizers, with automatic optimization"),
    (([mx.optimizer.Adam()], [3]), "int is no scheduler"),
]


@pytest.mark.parametrize(("given", "said"), FORMS)
def test_what_configure_optimizers_gives(given: Any, said: str) -> None:
    class Wrong(GluonModel):
        def configure_optimizers(self) -> Any:
            return given

    with pytest.raises(L.MisconfigurationException, match=said):
        L.Trainer(max_epochs=1, **QUIET).fit(Wrong(), loader())


MODELS: list[tuple[Any, type[Exception], str]] = [
    (gluon.nn.Dense(2), TypeError, r"not gluongraph\.gluon\.nn\.\S*Dense"),
    ((gluon.nn.Dense(2), gluon.loss.L2Loss()), L.MisconfigurationException, "no optimizer"),
    (
        (gluon.nn.Dense(2), 3, "adam"),
        TypeError,
        r"LightningModule or \(net, loss, optimizer\), not \(Dense, int, str\)",
    ),
    (None, TypeError, "has no model"),
    (L.LightningModule(), L.MisconfigurationException, "No `training_step"),
]


@pytest.mark.parametrize(("model", "error", "said"), MODELS)
def test_what_is_no_model(model: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        L.Trainer(max_epochs=1, **QUIET).fit(model, loader())


def test_loaders_that_are_missing_empty_or_none() -> None:
    trainer = L.Trainer(max_epochs=1, **QUIET)
    with pytest.raises(L.MisconfigurationException, match="has no train loader"):
        trainer.fit(GluonModel())
    with pytest.raises((L.MisconfigurationException, TypeError)):
        trainer.fit(GluonModel(), 5)
    with pytest.raises(L.MisconfigurationException, match="loaders and a data module"):
        trainer.fit(GluonModel(), loader(), datamodule=L.LightningDataModule())
    with pytest.raises(TypeError, match="no data module"):
        trainer.fit(GluonModel(), datamodule=loader())
    with pytest.raises(L.MisconfigurationException, match="less than one"):
        L.Trainer(max_epochs=1, limit_train_batches=0.1, **QUIET).fit(GluonModel(), loader())
    with pytest.raises(L.MisconfigurationException, match="val_check_interval=9"):
        L.Trainer(max_epochs=1, val_check_interval=9, **QUIET).fit(GluonModel(), loader(), loader())


def test_a_net_a_loss_and_an_optimizer_are_a_model() -> None:
    net = gluon.nn.Dense(3)
    net.initialize()
    trainer = L.Trainer(max_epochs=2, **QUIET)
    trainer.fit((net, gluon.loss.SoftmaxCrossEntropyLoss(), mx.optimizer.Adam()), loader(), loader(16))
    assert {"train_loss", "val_loss"} <= set(trainer.callback_metrics)
    predicted = trainer.predict(dataloaders=loader(16))
    assert [p.shape for p in predicted] == [(8, 3), (8, 3)]
    assert np.allclose(predicted[0].asnumpy(), net(mx.nd.array(next(iter(loader(16)))[0])).asnumpy(), atol=1e-5)


def test_a_net_and_a_loss_are_a_model() -> None:
    """The optimizer may be a name, and is missing where nothing is trained."""
    net, loss = gluon.nn.Dense(3), gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize()
    L.Trainer(max_epochs=2, **QUIET).fit((net, loss, "adam"), loader())
    trainer = L.Trainer(**QUIET)
    assert [list(each) for each in trainer.validate((net, loss), loader(16), verbose=False)] == [["val_loss"]]
    with pytest.raises(L.MisconfigurationException, match="no optimizer"):
        L.Trainer(max_epochs=1, **QUIET).fit((net, loss), loader())
    for given in ((net, loss, 3), (net,), ("net", loss, "adam")):
        with pytest.raises(TypeError, match=r"a model is a LightningModule or \(net, loss, optimizer\), not \("):
            trainer.fit(given, loader())


def test_a_copy_of_a_module_is_without_its_trainer() -> None:
    torch = pytest.importorskip("torch")

    class Model(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(6, 3)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch[0]).pow(2).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_train_epoch_end(self) -> None:
            copies.append(copy.deepcopy(self))

    copies: list[Any] = []
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 6)), batch_size=4)
    trainer = L.Trainer(max_epochs=1, **QUIET)
    trainer.fit(model := Model(), batches)
    for made in (*copies, copy.deepcopy(model)):
        assert made._trainer is None and torch.equal(made.layer.weight, model.layer.weight)
    assert model.trainer is trainer and trainer.strategy.root_device == torch.device("cpu")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's newer exporter needs the package onnxscript
def test_a_module_of_pytorch_is_written_as_onnx(tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnx")

    class Model(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Dropout(0.5))

        def forward(self, x: Any) -> Any:
            return self.layers(x)

    model, path, x = Model(), str(tmp_path / "model.onnx"), torch.ones(2, 6)
    with pytest.raises(L.MisconfigurationException, match="no input"):
        model.to_onnx(path)
    model.example_input_array = x
    model.to_onnx(path, dynamo=False)
    assert model.training and model.layers[1].training
    assert np.allclose(mx.onnx.load(path)(mx.nd.ones((2, 6))).asnumpy(), model.layers[0](x).detach().numpy(), atol=1e-5)
    with pytest.raises(L.MisconfigurationException, match=r"(?s)layers of PyTorch's.*export_onnx"):
        GluonModel().to_onnx(path, x)


def test_what_a_module_of_pytorch_can_do() -> None:
    torch = pytest.importorskip("torch")

    class Model(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(6, 3)

        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("mean", self.layer(batch[0]).mean())

        def on_test_epoch_end(self) -> None:
            found = self.all_gather({"of": [torch.ones(2), 3.0]})["of"]
            assert found[0].shape == (2,) and found[1].shape == () and not self.on_gpu

    model = Model()
    assert model.freeze() is model and not model.training and not model.layer.weight.requires_grad
    assert model.unfreeze() is model and model.training and model.layer.weight.requires_grad
    L.Trainer(**QUIET).test(model, [(torch.ones(4, 6),)], verbose=False)
    with pytest.raises(L.MisconfigurationException, match=r"torch\.export\.export"):
        model.to_torchscript("model.pt")


def test_a_trainer_goes_on_after_an_error() -> None:
    trainer, model = L.Trainer(max_epochs=1, **QUIET), GluonModel()
    with pytest.raises(L.MisconfigurationException):
        trainer.fit(model)
    trainer.fit(model, loader())
    assert trainer.global_step == 5 and trainer.state.finished
