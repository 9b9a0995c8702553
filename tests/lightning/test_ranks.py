"""Trainings on several ranks: one training, whoever starts the ranks, and the results of all of them in order."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from ranks import needs_mpi, run_ranks

pytest.importorskip("torch")

PROGRAM = """
import sys, warnings
import torch
import gluongraph.lightning as L

warnings.simplefilter("ignore")

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("val_loss", loss, sync_dist=True)
        self.log("worst", loss, sync_dist=True, reduce_fx="max")

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

def fit(devices, strategy, root):
    torch.manual_seed(1)
    x, y = torch.randn(64, 8), torch.randn(64, 2)
    loader = lambda size: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=size)
    trainer = L.Trainer(max_epochs=2, devices=devices, strategy=strategy, logger=False, enable_progress_bar=False,
                        enable_model_summary=False, default_root_dir=root)
    model = Model()
    trainer.fit(model, loader(16 // devices), loader(16 // devices))
    told = {name: round(float(value), 6) for name, value in trainer.callback_metrics.items()}
    made = torch.cat(trainer.predict(model, loader(7)))
    assert torch.allclose(made, model.net(x), atol=1e-5), "order"
    total = sum(p.double().abs().sum().item() for p in model.parameters())
    again = Model.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)), "checkpoint"
    told.pop("worst")  # of smaller batches
    print(f"{told} {total:.4f} {trainer.global_step}\\n", end="", flush=True)  # in one piece
"""


@needs_mpi
@pytest.mark.parametrize("strategy", ["ddp", "deepspeed_stage_2", "deepspeed_stage_1", "fsdp"])
def test_two_ranks_train_as_one(strategy: str, tmp_path: pathlib.Path) -> None:
    program = f"{PROGRAM}\nfit(2, {strategy!r}, {str(tmp_path / 'two')!r})"
    alone = f"{PROGRAM}\nfit(1, 'auto', {str(tmp_path / 'one')!r})"
    expected = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, check=True).stdout
    assert "train_loss" in expected
    assert run_ranks(2, program, timeout=200) == [expected, expected]


@needs_mpi
def test_a_script_starts_its_own_ranks(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{PROGRAM}\nfit(2, 'ddp', {str(tmp_path)!r})\n")
    environ = {**os.environ, "TVM_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environ, timeout=200)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and lines[0] == lines[1] and "val_loss" in lines[0]


RESUMED = """
import random, sys, warnings
import torch
import gluongraph.lightning as L

warnings.simplefilter("ignore")

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("drawn", random.random(), on_epoch=True, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

class Saving(L.callbacks.Checkpoint):
    batches = 0

    def on_train_batch_end(self, trainer, *args):
        self.batches += 1
        trainer.save_checkpoint(f"{sys.argv[2]}/{self.batches}.ckpt")

def fit(eager, path=None):
    x = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=2)
    trainer = L.Trainer(max_epochs=2, devices=2, logger=False, enable_progress_bar=False, enable_model_summary=False,
                        callbacks=[] if path else [Saving()], enable_checkpointing=not path,
                        accumulate_grad_batches=4, eager=eager)
    random.seed(trainer.global_rank + (10 if path else 0))
    model = Model()
    trainer.fit(model, loader, ckpt_path=path)
    told = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return told, [p.tolist() for p in model.parameters()], random.random()

eager = sys.argv[1] == "eager"
whole = fit(eager)
for batches in (2, 5, 8):
    assert fit(eager, f"{sys.argv[2]}/{batches}.ckpt") == whole, batches
print("same\\n", end="", flush=True)
"""


@needs_mpi
@pytest.mark.parametrize("mode", ["fused", "eager"])
def test_ranks_go_on_within_an_epoch(mode: str, tmp_path: pathlib.Path) -> None:
    """Each with what it has logged and drawn itself, and with its gradients of the window."""
    assert run_ranks(2, RESUMED, mode, tmp_path, timeout=200) == ["same\n", "same\n"]


OTHERS = """
import sys, warnings
import torch
import gluongraph.lightning as L

warnings.simplefilter("ignore")
mode, path, devices, saves = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "save"

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Saving(L.callbacks.Checkpoint):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 4:
            trainer.save_checkpoint(path)

x = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
trainer = L.Trainer(max_epochs=1, devices=devices, strategy="ddp", logger=False, enable_progress_bar=False,
                    enable_model_summary=False, callbacks=[Saving()] if saves else [], enable_checkpointing=saves,
                    accumulate_grad_batches=3, eager=mode == "eager")
model = Model()
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=4 // devices), ckpt_path=None if saves else path)
weights = [round(value, 5) for p in model.parameters() for value in p.flatten().tolist()]
print(f"{weights} {trainer.global_step}\\n", end="", flush=True)
"""


@needs_mpi
@pytest.mark.parametrize("mode", ["fused", "eager"])
def test_another_number_of_ranks_goes_on_within_a_window(mode: str, tmp_path: pathlib.Path) -> None:
    """With a batch of half the size on each of two ranks, where samples have a fixed order."""

    def alone(what: str) -> str:
        words = [sys.executable, "-c", OTHERS, mode, str(tmp_path / "a.ckpt"), "1", what]
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=200).stdout

    def two(what: str) -> list[str]:
        return run_ranks(2, OTHERS, mode, tmp_path / "a.ckpt", 2, what, timeout=200)

    whole = alone("save")
    assert whole.endswith(" 2\n") and two("go on") == [whole, whole]
    assert two("save") == [whole, whole] and alone("go on") == whole


def test_a_program_without_a_file_cannot_start_ranks() -> None:
    program = "import gluongraph.lightning as L; L.Trainer(devices=2)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and "a program that is no file" in done.stderr


EAGER = """
import os
import numpy as np
import torch
import gluongraph as mx
import gluongraph.lightning as L
from gluongraph import gluon

RANKS, KIND, ROOT = {ranks}, {kind!r}, {root!r}
draw = torch.Generator().manual_seed(1)
x, z = torch.randn(48, 4, generator=draw), torch.randn(48, 4, generator=draw)

class Gan(L.LightningModule):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.generator, self.judge = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
        if os.environ.get("OMPI_COMM_WORLD_RANK", "0") != "0":
            torch.nn.init.zeros_(self.judge.weight)  # the first rank's are those of all

    def training_step(self, batch, batch_idx):
        real, noise = batch
        for number, optimizer in enumerate(self.optimizers()):
            self.toggle_optimizer(optimizer)
            made = self.judge(self.generator(noise))
            loss = -made.mean() if number == 0 else made.sigmoid().mean() - self.judge(real).sigmoid().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)
            self.log(f"loss{{number}}", loss, on_step=False, on_epoch=True, sync_dist=True)

    def configure_optimizers(self):
        return [torch.optim.Adam(part.parameters(), 0.05) for part in (self.generator, self.judge)]

class Automatic(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 4)

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return (Own if KIND == "own" else torch.optim.AdamW)(self.parameters(), 0.05)

class Own(torch.optim.AdamW):  # a class of which the formula is not known
    pass

class OfGluon(L.LightningModule):
    automatic_optimization = KIND != "manual gluon"

    def __init__(self):
        super().__init__()
        self.net = gluon.nn.Dense(4, in_units=4)
        self.net.initialize(mx.init.Uniform(0.5))

    def training_step(self, batch, batch_idx):
        loss = ((self.net(batch[0]) - batch[1]) ** 2).mean()
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        if not self.automatic_optimization:
            self.manual_backward(loss)
            self.optimizers().step(1)
        return loss

    def configure_optimizers(self):
        return gluon.Trainer(self.collect_params(), "adam", {{"learning_rate": 0.05}})

def weights(model):
    if isinstance(model, OfGluon):
        return [p.data().asnumpy() for p in model.collect_params().values()]
    return [p.detach().numpy() for p in model.parameters()]

mx.random.seed(3)
torch.manual_seed(3)
model = {{"gan": Gan, "automatic": Automatic, "own": Automatic}}.get(KIND, OfGluon)()
trainer = L.Trainer(max_epochs=2, devices=RANKS, logger=False, enable_progress_bar=False, enable_model_summary=False,
                    default_root_dir=ROOT, eager=KIND != "gluon", accumulate_grad_batches=1 + (KIND == "automatic"))
trainer.fit(model, L.ArrayLoader(x.numpy(), z.numpy(), batch_size=12 // RANKS))
told = {{name: round(float(value), 4) for name, value in trainer.callback_metrics.items()}}
total = sum(float(np.abs(w).sum()) for w in weights(model))
print(f"{{told}} {{total:.3f}} {{trainer.global_step}}\\n", end="", flush=True)
"""


@needs_mpi
@pytest.mark.parametrize("kind", ["gan", "automatic", "own", "gluon", "eager gluon", "manual gluon"])
def test_steps_of_two_ranks_average_gradients(kind: str, tmp_path: pathlib.Path) -> None:
    """Also eager ones, and those of a gluon.Trainer whose store is the default one."""
    alone = EAGER.format(ranks=1, kind=kind, root=str(tmp_path / "one"))
    done = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True)
    assert done.returncode == 0 and "loss" in done.stdout, done.stderr
    program = EAGER.format(ranks=2, kind=kind, root=str(tmp_path / "two"))
    assert run_ranks(2, program, timeout=200) == [done.stdout, done.stdout]
