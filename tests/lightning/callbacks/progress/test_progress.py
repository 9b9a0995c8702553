"""Progress bars: what they show, how often they draw, and what that costs."""

from __future__ import annotations

import io
import math
import pathlib
import pickle
import re
import time
from contextlib import redirect_stdout
from typing import Any

import pytest
from pretend_trainer import Pretend
from small_fit import Linear, Loader, quiet

from gluongraph.lightning.callbacks import ProgressBar, RichProgressBar, TQDMProgressBar
from gluongraph.lightning.callbacks.progress import tqdm_progress
from gluongraph.lightning.callbacks.progress.tqdm_progress import Tqdm
from gluongraph.lightning.loggers import CSVLogger

BARS = (TQDMProgressBar, RichProgressBar)


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest) -> None:
    pytest.importorskip("rich")


def shown(bar: Any, folder: pathlib.Path, run: Any = None, **more: Any) -> str:
    """What is printed while a module is trained."""
    out = io.StringIO()
    with redirect_stdout(out):
        trainer = quiet(folder, callbacks=[bar], enable_progress_bar=True, **more)
        if run is None:
            trainer.fit(Linear(), Loader(5), Loader(3))
        else:
            run(trainer)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue()).replace("\r", "\n")


def test_a_training_in_tqdm(tmp_path: pathlib.Path) -> None:
    bar = TQDMProgressBar()
    text = shown(bar, tmp_path, max_epochs=2, logger=CSVLogger(tmp_path, version="first-1234"))
    assert "Sanity Checking DataLoader 0" in text and "Validation DataLoader 0: 100%" in text
    for epoch in (0, 1):
        last = re.findall(rf"Epoch {epoch}: 100%.* 5/5 .*v_num=1234, train_loss=\S+, val_loss=\S+?[\],]", text)
        assert last, text
    assert text.count("Epoch 1:   0%") <= 2


def test_a_training_in_rich(tmp_path: pathlib.Path) -> None:
    text = shown(RichProgressBar(console_kwargs={"force_terminal": True, "width": 200}), tmp_path, max_epochs=2)
    assert "Epoch 0/1" in text and "Validation" in text
    assert re.search(r"Epoch 1/1 .*5/5 .*it/s train_loss: \d\.\d{3} val_loss: \d\.\d{3}", text)


@pytest.mark.parametrize("make", BARS)
@pytest.mark.parametrize("fn", ["validate", "test", "predict"])
def test_evaluations(tmp_path: pathlib.Path, make: Any, fn: str) -> None:
    def run(trainer: Any) -> None:
        getattr(trainer, fn)(Linear(), Loader(7))

    names = {"validate": "Validation", "test": "Testing", "predict": "Predicting"}
    how = {"console_kwargs": {"force_terminal": True, "width": 120}} if make is RichProgressBar else {}
    text = shown(make(**how), tmp_path, run)
    assert names[fn] in text and "7/7" in text


@pytest.mark.parametrize("make", BARS)
def test_hidden_bars_print_nothing(tmp_path: pathlib.Path, make: Any) -> None:
    assert shown(make(refresh_rate=0), tmp_path) == ""
    bar = make()
    bar.setup(Pretend(tmp_path, is_global_zero=False), None, "fit")
    assert bar.is_disabled and bar.idle_batches(Pretend(tmp_path)) == math.inf
    bar.enable()
    assert bar.is_enabled


def test_printing_beside_a_bar(tmp_path: pathlib.Path) -> None:
    class Says(Linear):
        def on_train_epoch_end(self) -> None:
            self.print("said", 3, sep="-")

    for make in BARS:
        text = shown(make(), tmp_path, lambda trainer: trainer.fit(Says(), Loader(2)))
        assert "said-3" in [line.strip() for line in text.splitlines()]


class Draws(TQDMProgressBar):
    """Counts how often metrics are read, which is when it draws."""

    reads = 0

    def get_metrics(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
        self.reads += 1
        return {}


def pretended(bar: TQDMProgressBar, folder: pathlib.Path, batches: int) -> Pretend:
    trained = Pretend(folder, num_training_batches=batches, progress_bar_metrics={})
    bar.setup(trained, None, "fit")
    bar.on_train_start(trained, None)
    bar.on_train_epoch_start(trained, None)
    return trained


def test_it_draws_at_its_pace(tmp_path: pathlib.Path) -> None:
    """Seldom, whatever the number of batches; and after the last one."""
    with redirect_stdout(io.StringIO()):
        bar = Draws()
        trained = pretended(bar, tmp_path, 5000)
        bar.draws_every = 0.05
        began = time.perf_counter()
        for index in range(5000):
            trained.step()
            bar.on_train_batch_end(trained, None, None, None, index)
        took = time.perf_counter() - began
    assert 2 <= bar.reads <= took / 0.05 + 3 and bar.train_progress_bar.n == 5000


@pytest.mark.parametrize("rate", [1, 7, 100])
def test_it_draws_at_multiples(tmp_path: pathlib.Path, rate: int) -> None:
    with redirect_stdout(io.StringIO()):
        bar, seen = Draws(refresh_rate=rate), []
        trained = pretended(bar, tmp_path, 30)
        bar.draws_every = 0.0
        for index in range(30):
            before = bar.reads
            trained.step()
            bar.on_train_batch_end(trained, None, None, None, index)
            if bar.reads > before:
                seen.append(index + 1)
    assert seen == [n for n in range(1, 31) if n % rate == 0 or n == 30]


def test_which_batches_it_looks_at(tmp_path: pathlib.Path) -> None:
    """A loop that asks before each call, and joins as many batches as nobody looks at, still draws in time."""
    with redirect_stdout(io.StringIO()):
        bar, calls = Draws(), 0
        trained = pretended(bar, tmp_path, 4000)
        bar.draws_every = 0.05
        began, done = time.perf_counter(), 0
        while done < 4000:
            idle = int(min(bar.idle_batches(trained), 32, 4000 - done - 1))
            for _ in range(max(idle, 1)):
                trained.step()
                time.sleep(0.0001)
            done += max(idle, 1)
            if idle < 1:
                calls += 1
                bar.on_train_batch_end(trained, None, None, None, done - 1)
        took = time.perf_counter() - began
    assert bar.train_progress_bar.n == 4000 and calls < 2000
    assert took / 0.05 / 3 <= bar.reads <= took / 0.05 + 3


def test_a_bar_costs_next_to_nothing(tmp_path: pathlib.Path) -> None:
    """A batch that is not drawn: under 10 us, with slow machines in mind."""
    with redirect_stdout(io.StringIO()):
        bar = Draws()
        trained = pretended(bar, tmp_path, 10**9)
        bar.on_train_batch_end(trained, None, None, None, 0)
        best = math.inf
        for _ in range(5):
            began = time.perf_counter()
            for index in range(1000):
                bar.on_train_batch_end(trained, None, None, None, index)
            best = min(best, (time.perf_counter() - began) / 1000)
    assert best < 10e-6, f"{best * 1e6:.1f} us"


def test_numbers_of_bars_are_lightnings(original: Any) -> None:
    from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm as Theirs

    for number in (0.5, 1.0, 1e-7, 123456.0, 3, 10**9, "a", "1", "12.5", math.nan, math.inf):
        assert Tqdm.format_num(number) == Theirs.format_num(number)


def test_infinite_loaders(tmp_path: pathlib.Path) -> None:
    class Endless:
        def __iter__(self) -> Any:
            while True:
                yield from Loader(3)

    for make in BARS:
        text = shown(make(), tmp_path, lambda trainer: trainer.fit(Linear(), Endless()), max_steps=4, max_epochs=-1)
        assert "Epoch 0" in text


def test_an_error_leaves_the_terminal_usable(tmp_path: pathlib.Path) -> None:
    class Fails(Linear):
        def on_train_batch_end(self, *args: Any) -> None:
            raise RuntimeError("here")

    for make in BARS:
        bar = make()
        with pytest.raises(RuntimeError, match="here"):
            shown(bar, tmp_path, lambda trainer: trainer.fit(Fails(), Loader(3)))
        if make is TQDMProgressBar:
            assert bar.train_progress_bar.disable
        else:
            assert bar.progress is None


def test_bars_can_be_sent_to_another_process(tmp_path: pathlib.Path) -> None:
    for make in BARS:
        bar = make()
        shown(bar, tmp_path)
        assert pickle.loads(pickle.dumps(bar)).is_enabled


def test_a_name_that_is_shown_twice(tmp_path: pathlib.Path) -> None:
    trained = Pretend(tmp_path, progress_bar_metrics={"v_num": 3.0}, loggers=[CSVLogger(tmp_path)])
    bar = TQDMProgressBar()
    with pytest.warns(UserWarning, match="'v_num'"):
        assert bar.get_metrics(trained, None) == {"v_num": 3.0}
    assert bar.get_metrics(trained, None) == {"v_num": 3.0}  # said once


def test_a_bar_of_ones_own(tmp_path: pathlib.Path) -> None:
    class Own(ProgressBar):
        seen: list[float]

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.seen.append((batch_idx + 1) / self.total_train_batches)

    bar = Own()
    bar.seen = []
    with pytest.raises(TypeError, match="no Trainer"):
        _ = bar.total_train_batches
    quiet(tmp_path, callbacks=[bar], enable_progress_bar=True).fit(Linear(), Loader(4))
    assert bar.seen == [0.25, 0.5, 0.75, 1.0]
    with pytest.raises(NotImplementedError):
        bar.disable()


def test_the_environment_says_how_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TQDM_MINITERS", "10")
    assert TQDMProgressBar().refresh_rate == 10 and TQDMProgressBar(refresh_rate=0).is_disabled
    assert tqdm_progress._PADDED == 5
