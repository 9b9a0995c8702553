"""Checkpoints of a Trainer: a run that goes on from one has the bits of one that was never interrupted."""

from __future__ import annotations

import json
import os
import pathlib
import warnings
from typing import Any

import numpy as np
import pytest
from nets import QUIET, GluonModel, data, loader, same, weights

import gluongraph as mx
import gluongraph.lightning as L
from gluongraph.errors import FormatError
from gluongraph.lightning import checkpoints
from gluongraph.lightning.callbacks import ModelCheckpoint


def run(path: Any = None, folder: Any = None, stop: int = -1, **how: Any) -> tuple[Any, Any]:
    """A training of 3 epochs of 5 batches, from a checkpoint, or saving after each third update."""
    model = GluonModel()
    mx.random.seed(1)
    callbacks = [ModelCheckpoint(folder, every_n_train_steps=3, save_top_k=-1, filename="{step}")] if folder else []
    quiet = {**QUIET, "enable_checkpointing": bool(folder)}
    trainer = L.Trainer(max_epochs=3, max_steps=stop, callbacks=callbacks, val_check_interval=3, **quiet, **how)
    trainer.fit(model, loader(shuffle=True), loader(16), ckpt_path=path)
    return trainer, model


@pytest.mark.filterwarnings("ignore:the checkpoint has states of callbacks")
@pytest.mark.parametrize("how", [{}, {"accumulate_grad_batches": 2}, {"precision": "bf16-mixed"}])
def test_a_resumed_run_has_the_same_bits(tmp_path: pathlib.Path, how: dict[str, Any]) -> None:
    whole, model = run(**how)
    run(folder=tmp_path, stop=13, **how)
    names = sorted(each.name for each in tmp_path.iterdir())
    assert len(names) >= 2
    for name in names:
        resumed, other = run(tmp_path / name, **how)
        assert same(weights(model), weights(other)), name
        assert dict(resumed.callback_metrics) == dict(whole.callback_metrics), name
        assert resumed.counters == whole.counters


def test_the_state_of_manual_optimization_is_saved(tmp_path: pathlib.Path) -> None:
    class Manual(GluonModel):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            loss = self.loss(self.net(batch[0]), batch[1]).mean()
            self.manual_backward(loss)
            self.optimizers().step(1)

    def fit(name: str, epochs: int, path: Any = None) -> Any:
        model, quiet = Manual(), {**QUIET, "enable_checkpointing": True}
        mx.random.seed(1)
        L.Trainer(max_epochs=epochs, default_root_dir=tmp_path / name, **quiet).fit(model, loader(), ckpt_path=path)
        return model

    whole = fit("whole", 3)
    fit("part", 2)
    path = checkpoints.newest((tmp_path / "part" / "checkpoints").iterdir())
    assert path is not None and path.endswith("epoch=1-step=10.ckpt")
    with pytest.warns(UserWarning, match="dirpath was"):
        assert same(weights(whole), weights(fit("rest", 3, path)))


def test_what_users_add_comes_back(tmp_path: pathlib.Path) -> None:
    seen: list[Any] = []

    class Own(GluonModel):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["mine"] = {"table": np.arange(3.0), "words": ["a", None]}

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            seen.append(checkpoint["mine"])

    trainer, path = L.Trainer(max_epochs=1, **QUIET), tmp_path / "own.ckpt"
    trainer.fit(model := Own(rate=0.02), loader())
    trainer.save_checkpoint(path)
    again = Own.load_from_checkpoint(path)
    assert same(weights(model), weights(again)) and again.hparams.rate == 0.02
    assert seen[0]["table"].asnumpy().tolist() == [0.0, 1.0, 2.0] and seen[0]["words"] == ["a", None]
    assert Own.load_from_checkpoint(path, rate=0.5).hparams.rate == 0.5


def test_loading_executes_nothing_and_damage_is_seen(tmp_path: pathlib.Path) -> None:
    trainer, path = L.Trainer(max_epochs=1, **QUIET), tmp_path / "a.ckpt"
    trainer.fit(GluonModel(), loader())
    trainer.save_checkpoint(path)
    assert sorted(p.suffix for p in path.iterdir()) == [".json", ".json", *[".safetensors"] * 3]
    weights_file = path / "params-00000-of-00001.safetensors"
    content = bytearray(weights_file.read_bytes())
    content[-1] ^= 1
    weights_file.write_bytes(content)
    with pytest.raises(FormatError, match="damaged"):
        GluonModel.load_from_checkpoint(path)


def test_a_checkpoint_is_replaced_whole(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, path = L.Trainer(max_epochs=1, **QUIET), tmp_path / "a.ckpt"
    trainer.fit(model := GluonModel(), loader())
    trainer.save_checkpoint(path)
    before = weights(model)
    model.net[0].weight.data()[:] = 0

    def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="could not be saved"):
            trainer.save_checkpoint(path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.ckpt"]
    assert same(before, weights(GluonModel.load_from_checkpoint(path)))
    trainer.save_checkpoint(path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.ckpt"]
    assert not GluonModel.load_from_checkpoint(path).net[0].weight.data().asnumpy().any()


def test_weights_only_and_wrong_paths(tmp_path: pathlib.Path) -> None:
    trainer = L.Trainer(max_epochs=1, **QUIET)
    trainer.fit(GluonModel(), loader())
    trainer.save_checkpoint(tmp_path / "w.ckpt", weights_only=True)
    told = json.loads((tmp_path / "w.ckpt" / "trainer.json").read_text())["extra"]["lightning"]
    assert "loops" not in told and told["global_step"] == 5
    with pytest.raises(L.MisconfigurationException, match="weights only"):
        L.Trainer(max_epochs=2, **QUIET).fit(GluonModel(), loader(), ckpt_path=tmp_path / "w.ckpt")
    with pytest.raises(FileNotFoundError, match=r"there are w\.ckpt"):
        L.Trainer(max_epochs=2, **QUIET).fit(GluonModel(), loader(), ckpt_path=tmp_path / "x.ckpt")
    (tmp_path / "lightning.ckpt").write_bytes(b"PK")
    for read in (
        lambda: L.Trainer(**QUIET).validate(GluonModel(), loader(), ckpt_path=tmp_path / "lightning.ckpt"),
        lambda: GluonModel.load_from_checkpoint(tmp_path / "lightning.ckpt"),
    ):
        with pytest.raises(FormatError, match=r"(?s)lightning\.ckpt is a file.*load_state_dict"):
            read()
    with pytest.raises(L.MisconfigurationException, match="without a ModelCheckpoint"):
        L.Trainer(max_epochs=2, **QUIET).test(GluonModel(), loader(), ckpt_path="best")


def test_weights_of_another_module_are_refused(tmp_path: pathlib.Path) -> None:
    class Wider(GluonModel):
        def __init__(self) -> None:
            super().__init__()
            self.more = mx.gluon.nn.Dense(2, in_units=2)
            self.more.initialize()

    trainer, path = L.Trainer(max_epochs=1, **QUIET), tmp_path / "a.ckpt"
    trainer.fit(GluonModel(), loader())
    trainer.save_checkpoint(path)
    with pytest.raises(FormatError, match="missing: more"):
        Wider.load_from_checkpoint(path)
    assert Wider.load_from_checkpoint(path, strict=False) is not None


def test_the_best_checkpoint_is_tested(tmp_path: pathlib.Path) -> None:
    callback = ModelCheckpoint(tmp_path, monitor="val_loss", mode="max", filename="{epoch}")
    quiet = {**QUIET, "enable_checkpointing": True}
    trainer = L.Trainer(max_epochs=3, callbacks=[callback], **quiet)
    trainer.fit(model := GluonModel(), loader(), loader(16))
    found = trainer.test(dataloaders=loader(16), ckpt_path="best", verbose=False)
    best = GluonModel.load_from_checkpoint(callback.best_model_path)
    assert trainer.test(best, loader(16), verbose=False) == found
    assert same(weights(model), weights(best))  # test has put the best ones in place
    assert data(1)[0].shape == (1, 6)


class Configured(GluonModel):
    """A module with hyperparameters of several kinds."""

    def __init__(self, config: Any, layers: Any = None):
        super().__init__()
        self.save_hyperparameters()


def saved_with(config: Any, folder: pathlib.Path) -> pathlib.Path:
    trainer, path = L.Trainer(max_epochs=1, **QUIET), folder / "configured.ckpt"
    trainer.fit(Configured(config), loader())
    trainer.save_checkpoint(path)
    return path


def test_hyperparameters_of_numpy_and_paths(tmp_path: pathlib.Path) -> None:
    path = saved_with({"rate": np.float32(0.5), "sizes": (np.int64(3), 4), "data": pathlib.Path("a/b")}, tmp_path)
    assert Configured.load_from_checkpoint(path).hparams.config == {"rate": 0.5, "sizes": [3, 4], "data": "a/b"}


class WithOthers(GluonModel):
    """A module that takes any further argument."""

    def __init__(self, rate: float = 0.1, **kwargs: Any):
        super().__init__()
        self.save_hyperparameters()
        self.taken = rate, kwargs.get("width")


def test_hyperparameters_where_others_are_taken(tmp_path: pathlib.Path) -> None:
    trainer, path = L.Trainer(max_epochs=1, **QUIET), tmp_path / "others.ckpt"
    trainer.fit(WithOthers(rate=0.5, width=3), loader())
    trainer.save_checkpoint(path)
    again, other = WithOthers.load_from_checkpoint(path), WithOthers.load_from_checkpoint(path, rate=0.2)
    assert again.taken == (0.5, 3) and "kwargs" not in again.hparams
    assert other.taken == (other.hparams.rate, other.hparams.width) == (0.2, 3)


def test_hyperparameters_that_a_checkpoint_does_not_hold(tmp_path: pathlib.Path) -> None:
    path = saved_with(object(), tmp_path)
    with pytest.raises(
        TypeError, match=r"Configured.__init__ needs config, which the checkpoint does not hold"
    ) as error:
        Configured.load_from_checkpoint(path)
    assert "load_from_checkpoint(path, config=...)" in str(error.value)
    assert Configured.load_from_checkpoint(path, config=3).hparams.config == 3


def test_hyperparameters_that_have_their_defaults_again(tmp_path: pathlib.Path) -> None:
    class Optional(GluonModel):
        def __init__(self, act: Any = None, rate: float = 0.1):
            super().__init__()
            self.save_hyperparameters()

    trainer, path = L.Trainer(max_epochs=1, **QUIET), tmp_path / "a.ckpt"
    trainer.fit(Optional(act=np.tanh, rate=0.2), loader())
    trainer.save_checkpoint(path)
    with pytest.warns(UserWarning, match=r"does not hold act, .*load_from_checkpoint\(path, act=\.\.\.\)"):
        again = Optional.load_from_checkpoint(path)
    assert again.hparams.act is None and again.hparams.rate == 0.2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Optional.load_from_checkpoint(path, act=np.tanh).hparams.act is np.tanh


def test_hyperparameters_that_a_base_class_has_kept_are_left_out() -> None:
    class Base(GluonModel):
        def __init__(self, rate: float = 0.1, secret: str = "") -> None:
            super().__init__()
            self.save_hyperparameters()

    class Derived(Base):
        def __init__(self, rate: float = 0.1, secret: str = "key") -> None:
            super().__init__(rate, secret)
            self.save_hyperparameters(ignore="secret")

    assert "secret" not in Derived().hparams and Derived().hparams.rate == 0.1


def test_an_evaluation_restores_callbacks(tmp_path: pathlib.Path) -> None:
    class Counting(L.Callback):
        count = 0

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.count = state_dict["count"]

    first, again = Counting(), Counting()
    first.count = 7
    trainer, path = L.Trainer(max_epochs=1, callbacks=[first], **QUIET), tmp_path / "a.ckpt"
    trainer.fit(GluonModel(), loader())
    trainer.save_checkpoint(path)
    L.Trainer(callbacks=[again], **QUIET).validate(GluonModel(), loader(16), ckpt_path=path, verbose=False)
    assert again.count == 7


def test_a_checkpoint_of_a_later_epoch_than_the_last(tmp_path: pathlib.Path) -> None:
    trainer, path = L.Trainer(max_epochs=2, **QUIET), tmp_path / "a.ckpt"
    trainer.fit(GluonModel(), loader())
    trainer.save_checkpoint(path)
    L.Trainer(max_epochs=2, **QUIET).fit(GluonModel(), loader(), ckpt_path=path)
    with pytest.raises(L.MisconfigurationException, match="the checkpoint is of epoch 2, and max_epochs=1"):
        L.Trainer(max_epochs=1, **QUIET).fit(GluonModel(), loader(), ckpt_path=path)


def test_states_of_callbacks_that_are_missing(tmp_path: pathlib.Path) -> None:
    stopping = L.callbacks.EarlyStopping("val_loss", patience=9)
    trainer, path = L.Trainer(max_epochs=1, callbacks=[stopping], **QUIET), tmp_path / "a.ckpt"
    trainer.fit(GluonModel(), loader(), loader(16))
    trainer.save_checkpoint(path)
    with pytest.warns(UserWarning, match=r"callbacks that this Trainer has not: EarlyStopping.*'val_loss'"):
        L.Trainer(max_epochs=2, **QUIET).fit(GluonModel(), loader(), loader(16), ckpt_path=path)
    with pytest.raises(TypeError, match=r"ckpt_path=3.*the path of a checkpoint"):
        L.Trainer(max_epochs=2, **QUIET).fit(GluonModel(), loader(), loader(16), ckpt_path=3)
    again = L.callbacks.EarlyStopping("val_loss", patience=9)
    L.Trainer(max_epochs=1, callbacks=[again], **QUIET).fit(GluonModel(), loader(), loader(16), ckpt_path=path)
    assert again.state_dict() == stopping.state_dict()
    L.Trainer(**QUIET).validate(GluonModel(), loader(16), ckpt_path=path, verbose=False)  # which has no use for it
