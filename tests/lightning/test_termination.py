"""SIGTERM: a run ends after the batch, as in Lightning; the last checkpoint is whole, and workers of loaders end."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from nets import QUIET, GluonModel, data, loader

import gluongraph.lightning as L
from gluongraph.lightning import checkpoints
from gluongraph.lightning.utilities.exceptions import SIGTERMException

HOOKS = ["on_train_batch_end", "on_validation_batch_end", "on_test_batch_end", "on_predict_batch_end"]


class Ends(L.Callback):
    """Sends SIGTERM to this process after the second batch that a hook sees, and notes what it sees then."""

    def __init__(self, hook: str):
        self.seen: list[Any] = []
        setattr(self, hook, self.after_batch)

    def after_batch(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, *rest: Any) -> None:
        if batch_idx == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        self.seen.append((batch_idx, trainer.received_sigterm))

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self.seen.append(type(exception).__name__)


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("own", [False, True])
def test_a_run_ends_after_the_batch(hook: str, own: bool) -> None:
    calls: list[int] = []

    def handler(number: int, frame: Any) -> None:
        calls.append(number)

    before = signal.signal(signal.SIGTERM, handler if own else signal.SIG_DFL)
    try:
        trainer = L.Trainer(max_epochs=1, num_sanity_val_steps=0, callbacks=[ends := Ends(hook)], **QUIET)
        samples = L.ArrayLoader(data()[0], batch_size=8)
        with pytest.raises(SIGTERMException) as error:
            if hook == "on_predict_batch_end":
                trainer.predict(GluonModel(), samples)
            elif hook == "on_test_batch_end":
                trainer.test(GluonModel(), loader())
            else:
                trainer.fit(GluonModel(), loader(), loader())
        assert signal.getsignal(signal.SIGTERM) is (handler if own else signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ends.seen == [(0, False), (1, True), "SIGTERMException"] and error.value.code == 143
    assert calls == [signal.SIGTERM] * own and trainer.interrupted


def test_another_run_goes_on() -> None:
    trainer = L.Trainer(max_epochs=2, callbacks=[ends := Ends("on_train_batch_end")], **QUIET)
    with pytest.raises(SIGTERMException):
        trainer.fit(model := GluonModel(), loader())
    trainer.callbacks.remove(ends)
    trainer.fit(model, loader())
    assert trainer.state.status == "finished" and not trainer.received_sigterm


def test_handlers_are_left_alone_beside_the_main_thread() -> None:
    found: list[Any] = []

    class Looks(L.Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            found.append(signal.getsignal(signal.SIGTERM))

    def run() -> None:
        L.Trainer(max_epochs=1, callbacks=[Looks()], **QUIET).fit(GluonModel(), loader())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]


PROGRAM = """
import os, pathlib, sys, time
import torch
import gluongraph.lightning as L
from gluongraph import gluon

KIND, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])

class Data:
    def __len__(self):
        return 100000

    def __getitem__(self, i):
        (FOLDER / f"worker-{os.getpid()}").touch()
        x = torch.ones(4)
        return x if KIND == "torch" else x.numpy()

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return self.net(batch).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)

class Says(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx == 5:
            print("ready", flush=True)

    def on_exception(self, trainer, module, exception):
        print(type(exception).__name__, trainer.global_step, flush=True)

make = torch.utils.data.DataLoader if KIND == "torch" else gluon.data.DataLoader
saving = L.callbacks.ModelCheckpoint(FOLDER / "saved", every_n_train_steps=2, save_top_k=2, monitor="step", mode="max")
trainer = L.Trainer(max_epochs=1, callbacks=[Says(), saving], logger=False, enable_progress_bar=False,
                    enable_model_summary=False, max_steps=int(sys.argv[3]))
trainer.fit(Model(), make(Data(), batch_size=4, num_workers=2), ckpt_path=sys.argv[4] if len(sys.argv) > 4 else None)
print("ended", trainer.global_step, flush=True)
"""


@pytest.mark.parametrize("kind", ["torch", "gluon"])
def test_workers_end_and_the_checkpoint_is_whole(kind: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), kind, str(tmp_path)]
    with subprocess.Popen([*command, "-1"], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        said, steps = process.stdout.readline().split()
        assert process.wait(60) == 143 and said == "SIGTERMException"
    workers = [int(path.name.removeprefix("worker-")) for path in tmp_path.glob("worker-*")]
    until = time.monotonic() + 20
    while alive := [pid for pid in workers if pathlib.Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < until, alive
        time.sleep(0.05)
    newest = checkpoints.newest((tmp_path / "saved").iterdir())
    assert len(workers) == 2 and newest is not None
    end = str(int(steps) + 3)
    done = subprocess.run([*command, end, newest], capture_output=True, text=True, timeout=200)
    assert done.stdout.splitlines()[-1] == f"ended {end}", done.stderr
