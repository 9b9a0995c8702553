"""LightningCLI: what is made of the options, and what is run."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
import gluongraph.lightning as L
from gluongraph import gluon

pytest.importorskip("jsonargparse")

from gluongraph.lightning.cli import LightningCLI, SaveConfigCallback

OFF = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
pytestmark = pytest.mark.filterwarnings("ignore:LightningCLI")


class Net(L.LightningModule):
    def __init__(self, lr: float = 0.01, width: int = 2):
        super().__init__()
        self.save_hyperparameters()
        self.net = gluon.nn.Dense(1, in_units=width)
        self.net.initialize(mx.init.One())

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return (self.net(batch) ** 2).mean()

    def configure_optimizers(self) -> Any:
        return gluon.Trainer(self.collect_params(), "sgd", {"learning_rate": self.hparams.lr})


class Data(L.LightningDataModule):
    def __init__(self, batches: int = 2):
        super().__init__()
        self.batches = batches

    def train_dataloader(self) -> Any:
        return L.data.ArrayLoader(np.ones((3 * self.batches, 2), np.float32), batch_size=3)


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")
    return tmp_path


def made(*args: str, **how: Any) -> LightningCLI:
    return LightningCLI(Net, Data, run=False, args=list(args), **how)


def test_objects_have_the_options() -> None:
    cli = made("--model.lr", "0.5", "--data.batches=7", "--trainer.max_epochs", "4")
    assert (cli.model.hparams.lr, cli.datamodule.batches, cli.trainer.max_epochs) == (0.5, 7, 4)
    assert cli.config["model"]["width"] == 2 and cli.subcommand is None


def test_a_run(folder: pathlib.Path) -> None:
    called: list[str] = []

    class Cli(LightningCLI):
        def add_arguments_to_parser(self, parser: Any) -> None:
            parser.add_argument("--name", default="run")
            parser.link_arguments("data.batches", "model.width")

        def before_fit(self) -> None:
            called.append(f"before {self.config['fit']['name']}")

        def after_fit(self) -> None:
            called.append("after")

    args = ["fit", "--trainer.max_epochs", "2", "--name", "mine", "--data.batches", "2"]
    cli = Cli(Net, Data, trainer_defaults=OFF, args=args)
    assert called == ["before mine", "after"] and cli.trainer.global_step == 4
    assert cli.model.hparams.width == 2
    assert "batches: 2" in (folder / "config.yaml").read_text()


def test_callbacks_and_loggers_by_their_names() -> None:
    cli = made(
        "--trainer.callbacks+=EarlyStopping",
        "--trainer.callbacks.monitor=train_loss",
        "--trainer.callbacks.patience=9",
        "--trainer.logger=CSVLogger",
        "--trainer.logger.save_dir=logs",
        trainer_defaults={"callbacks": [L.callbacks.Timer()]},
    )
    stopping = cli.trainer.early_stopping_callback
    assert (stopping.monitor, stopping.patience) == ("train_loss", 9)
    assert any(isinstance(c, L.callbacks.Timer) for c in cli.trainer.callbacks)
    assert any(isinstance(c, SaveConfigCallback) for c in cli.trainer.callbacks)
    assert isinstance(cli.trainer.logger, L.loggers.CSVLogger)


def test_options_of_a_callback_of_its_own() -> None:
    class Cli(LightningCLI):
        def add_arguments_to_parser(self, parser: Any) -> None:
            parser.add_lightning_class_args(L.callbacks.EarlyStopping, "stopping")

    cli = Cli(Net, Data, run=False, args=["--stopping.monitor", "loss"], save_config_callback=None)
    assert cli.trainer.early_stopping_callback.monitor == "loss"
    assert not any(isinstance(c, SaveConfigCallback) for c in cli.trainer.callbacks)


def test_options_in_a_dictionary() -> None:
    cli = LightningCLI(Net, Data, run=False, args={"model": {"lr": 0.3}, "seed_everything": 5})
    assert cli.model.hparams.lr == 0.3 and cli.config["seed_everything"] == 5


@pytest.mark.parametrize(("given", "wanted"), [("9", 9), ("true", 0), ("false", False)])
def test_the_seed(given: str, wanted: int | bool) -> None:
    assert made("--seed_everything", given).config["seed_everything"] is wanted or wanted == 9


def test_the_class_is_an_option() -> None:
    name = f"{__name__}.Net"
    cli = LightningCLI(run=False, args=["--model", name, "--model.lr", "0.2"])
    assert type(cli.model).__name__ == "Net" and cli.model.hparams.lr == 0.2 and cli.datamodule is None


def test_hyperparameters_of_a_class_that_is_an_option(folder: pathlib.Path) -> None:
    how: dict[str, Any] = {"trainer_defaults": {**OFF, "max_epochs": 1}, "save_config_callback": None}
    name = f"{__name__}.Net"
    words = [f"--data={__name__}.Data", f"--model={name}"]
    first = LightningCLI(args=["fit", *words, "--model.lr=0.25", "--model.width=2"], **how)
    first.trainer.save_checkpoint("saved.ckpt")
    again = LightningCLI(args=["fit", *words, "--model.width=2", "--ckpt_path=saved.ckpt"], **how)
    assert again.model.hparams.lr == 0.25
    given = LightningCLI(args=["fit", *words, "--model.lr=0.5", "--ckpt_path=saved.ckpt"], **how)
    assert given.model.hparams.lr == 0.5


def test_strategies_and_profilers_by_their_names() -> None:
    words = ["--trainer.strategy=DDPStrategy", "--trainer.strategy.find_unused_parameters=true"]
    words += ["--trainer.profiler=AdvancedProfiler", "--trainer.profiler.filename=perf"]
    cli = made(*words)
    assert type(cli.trainer.strategy).__name__ == "DDPStrategy" and cli.trainer.profiler.filename == "perf"
    assert type(made("--trainer.profiler=simple").trainer.profiler).__name__ == "SimpleProfiler"
    assert made("--trainer.strategy=ddp").trainer.strategy.strategy_name == "ddp"


def test_functions_that_make_the_objects() -> None:
    def narrow(lr: float = 0.7) -> Net:
        return Net(lr, 2)

    cli = LightningCLI(narrow, run=False, args=["--model.lr", "0.6"], trainer_class=trainer_of_one_epoch)
    assert cli.model.hparams.lr == 0.6 and cli.trainer.max_epochs == 1


def trainer_of_one_epoch(callbacks: list[L.Callback] | None = None, limit: int = 2) -> L.Trainer:
    return L.Trainer(max_epochs=1, callbacks=callbacks, limit_train_batches=limit, **OFF)


def test_hyperparameters_come_from_the_checkpoint(folder: pathlib.Path) -> None:
    first = LightningCLI(Net, Data, args=["fit", "--model.lr", "0.25"], trainer_defaults={**OFF, "max_epochs": 1})
    first.trainer.save_checkpoint("saved.ckpt")
    (folder / "config.yaml").unlink()
    again = LightningCLI(
        Net, Data, args=["fit", "--ckpt_path", "saved.ckpt"], trainer_defaults={**OFF, "max_epochs": 2}
    )
    assert again.model.hparams.lr == 0.25 and again.trainer.global_step == 4
    (folder / "config.yaml").unlink()
    words = ["fit", "--ckpt_path", "saved.ckpt", "--model.lr", "0.5"]
    given = LightningCLI(Net, Data, args=words, trainer_defaults={**OFF, "max_epochs": 2})
    assert given.model.hparams.lr == 0.5


def test_an_optimizer_of_pytorch() -> None:
    torch = pytest.importorskip("torch")

    class Linear(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

    args = [
        "--optimizer",
        "Adam",
        "--optimizer.lr",
        "0.25",
        "--lr_scheduler",
        "StepLR",
        "--lr_scheduler.step_size",
        "3",
    ]
    cli = LightningCLI(Linear, run=False, args=args)
    (optimizer,), (scheduler,) = cli.model.configure_optimizers()
    assert isinstance(optimizer, torch.optim.Adam) and optimizer.defaults["lr"] == 0.25
    assert scheduler.step_size == 3 and scheduler.optimizer is optimizer
    plateau = ["--lr_scheduler", "gluongraph.lightning.cli.ReduceLROnPlateau", "--lr_scheduler.monitor", "loss"]
    cli = LightningCLI(Linear, run=False, args=[*args[:4], *plateau])
    found = cli.model.configure_optimizers()
    assert found["lr_scheduler"]["monitor"] == "loss" and found["optimizer"].defaults["lr"] == 0.25


def test_an_optimizer_takes_the_modules_place() -> None:
    torch = pytest.importorskip("torch")

    class Linear(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def configure_optimizers(self) -> Any:
            return None

    with pytest.warns(UserWarning, match="takes the place of Linear.configure_optimizers"):
        LightningCLI(Linear, run=False, args=["--optimizer=SGD", "--optimizer.lr=1.0"])
    assert LightningCLI(Linear, run=False, args=[]).model.configure_optimizers() is None


def test_types_for_arguments_that_make_optimizers() -> None:
    torch = pytest.importorskip("torch")
    from gluongraph.lightning import cli as module

    optimizer_callable: Any = module.OptimizerCallable  # type: ignore[attr-defined]

    class Linear(L.LightningModule):
        def __init__(self, optimizer: optimizer_callable = torch.optim.Adam) -> None:
            super().__init__()
            self.layer, self.make = torch.nn.Linear(2, 1), optimizer

    Linear.__init__.__annotations__["optimizer"] = optimizer_callable
    cli = LightningCLI(Linear, run=False, args=["--model.optimizer=SGD", "--model.optimizer.lr=0.5"])
    assert cli.model.make(cli.model.parameters()).defaults["lr"] == 0.5


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model.lrr", "1"], "unrecognized arguments: --model.lrr 1"),
        (["--trainer.max_epoch", "1"], "unrecognized arguments: --trainer.max_epoch 1"),  # an abbreviation
        (["--model.lr", "x"], "model.lr"),
    ],
)
def test_bad_options(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        made(*args)
    assert ended.value.code == 2 and message in capsys.readouterr().err
