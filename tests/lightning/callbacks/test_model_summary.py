"""ModelSummary: counts of parameters, of Gluon's blocks and of torch modules as Lightning counts them."""

from __future__ import annotations

import io
import logging
import pathlib
import random
from contextlib import redirect_stdout
from typing import Any

import pytest
from small_fit import Linear, Loader, quiet

import gluongraph as mx
from gluongraph import gluon
from gluongraph.lightning import MisconfigurationException
from gluongraph.lightning.callbacks import ModelSummary, RichModelSummary
from gluongraph.lightning.callbacks.model_summary import human_readable_count, summarize


def test_numbers_are_written_as_lightning_does(original: Any) -> None:
    from lightning.pytorch.utilities.model_summary import get_human_readable_count

    rng = random.Random(0)
    for number in (0, 1, 999, 1000, 999_999, 10**6, *(int(10 ** rng.uniform(0, 17)) for _ in range(300))):
        assert human_readable_count(number) == get_human_readable_count(number)


@pytest.mark.parametrize("depth", [1, 2, -1])
def test_a_torch_module(original: Any, depth: int) -> None:
    import torch
    from lightning.pytorch.utilities.model_summary import ModelSummary as Theirs

    class Model(original.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            inner = torch.nn.Sequential(torch.nn.Linear(8, 300), torch.nn.BatchNorm1d(300))
            self.body = torch.nn.Sequential(inner, torch.nn.ReLU(), torch.nn.Linear(300, 2))
            self.head = torch.nn.Linear(2, 2, bias=False)
            self.head.weight.requires_grad = False
            self.tied = self.head
            self.scale = torch.nn.Parameter(torch.zeros(5))
            self.body[1].eval()

    model = Model()
    ours, theirs = summarize(model, depth), Theirs(model, max_depth=depth)
    assert [layer.name for layer in ours.layers] == theirs.layer_names
    assert [layer.kind for layer in ours.layers] == theirs.layer_types
    assert [layer.parameters for layer in ours.layers] == theirs.param_nums
    assert [layer.training for layer in ours.layers] == theirs.training_modes
    assert ours.total_parameters == theirs.total_parameters
    assert ours.trainable_parameters == theirs.trainable_parameters
    assert ours.model_size == pytest.approx(theirs.model_size)
    assert dict(zip(("train", "eval"), ours.training_modes, strict=True)) == theirs.total_training_modes
    rows = {tuple(cell.strip() for cell in line.split("|")[:5]) for line in str(theirs).splitlines()}
    for line in str(ours).splitlines():  # Lightning leaves the line of other parameters out where layers are in layers
        cells = tuple(cell.strip() for cell in line.split("|")[:5])
        assert line.startswith("---") or "other params" in line or cells in rows, line


@pytest.mark.parametrize("depth", [0, 1, -1])
def test_operations_and_shapes(original: Any, depth: int) -> None:
    """Of a torch module with an example of its input, as Lightning tells them."""
    import torch
    from lightning.pytorch.utilities.model_summary import ModelSummary as Theirs

    from gluongraph.lightning.utilities import model_summary

    class Model(original.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.example_input_array = (torch.zeros(3, 4, 9, 9), torch.zeros(3, 5))
            self.body = torch.nn.Sequential(torch.nn.Conv2d(4, 6, 3), torch.nn.BatchNorm2d(6), torch.nn.Dropout(0.5))
            self.head = torch.nn.Linear(5, 5)
            self.lstm = torch.nn.LSTM(6, 2, batch_first=True)
            self.unused = torch.nn.Linear(7, 1)
            self.body[1].eval()

        def forward(self, x: Any, y: Any) -> Any:
            made = self.body(x).mean((2, 3))[:, None]
            return self.lstm(made)[0], self.head(self.head(y))

    model = Model()
    before = [each.training for each in model.modules()]
    ours, theirs = model_summary.ModelSummary(model, depth), Theirs(model, max_depth=depth)
    assert [each.training for each in model.modules()] == before and not model.head._forward_hooks
    assert (ours.in_sizes, ours.out_sizes) == (theirs.in_sizes, theirs.out_sizes)
    assert (ours.layer_names, ours.param_nums) == (theirs.layer_names, theirs.param_nums)
    assert (ours.total_flops, ours.total_layer_params) == (theirs.total_flops, theirs.total_layer_params)
    assert ours.total_training_modes == theirs.total_training_modes
    if depth:
        lines = [line.rstrip() for line in str(theirs).splitlines()]
        assert str(ours).splitlines() == lines
    assert model_summary.summarize(model, depth).total_parameters == theirs.total_parameters


def test_an_example_in_the_precision_of_the_trainer(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    torch = pytest.importorskip("torch")

    class Model(mx.lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)
            self.example_input_array = {"x": torch.zeros(2, 4)}

        def forward(self, x: Any) -> Any:
            return self.layer(x)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self(torch.ones(2, 4, dtype=torch.float64)).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    with caplog.at_level(logging.INFO):
        quiet(tmp_path, callbacks=[ModelSummary()], precision="64-true").fit(Model(), [torch.zeros(1)])
    assert "| FLOPs | In sizes | Out sizes" in caplog.text and "| 48    | [2, 4]   | [2, 3]" in caplog.text


def test_blocks_of_gluon() -> None:
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(8, 3, in_channels=3), gluon.nn.BatchNorm(in_channels=8), gluon.nn.Dense(10))
    net[0].bias.grad_req = "null"
    found = summarize(net, -1)
    assert [(layer.name, layer.kind, layer.parameters) for layer in found.layers] == [
        ("0", "Conv2D", 224),
        ("1", "BatchNorm", 16),
        ("2", "Dense", 10),
    ]
    assert (found.total_parameters, found.trainable_parameters) == (250, 242)
    assert [layer.shapes_known for layer in found.layers] == [True, True, False] and "10 + ?" in str(found)
    net.initialize()
    net(mx.nd.zeros((1, 3, 8, 8)))
    assert summarize(net).total_parameters == 240 + 10 + 10 * 8 * 36
    net.cast("float64")
    assert summarize(net).nbytes == 8 * summarize(net).total_parameters


def test_a_fit_shows_it(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        quiet(tmp_path, callbacks=[ModelSummary(2)]).fit(Linear(), Loader(1))
        assert "| net  | Dense" in caplog.text and "4         Trainable params" in caplog.text
        caplog.clear()
        quiet(tmp_path, callbacks=[ModelSummary(0)]).fit(Linear(), Loader(1))
        assert "Dense" not in caplog.text


def test_with_rich(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("rich")
    out = io.StringIO()
    with redirect_stdout(out):
        quiet(tmp_path, callbacks=[RichModelSummary()]).fit(Linear(), Loader(1))
    assert "Dense" in out.getvalue() and "Trainable params: 4" in out.getvalue()


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MisconfigurationException, match="max_depth=-2"):
        ModelSummary(-2)
    monkeypatch.setattr("gluongraph.lightning.callbacks.progress.rich_progress.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install rich"):
        RichModelSummary()
