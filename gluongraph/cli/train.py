"""Train on data in files, a compiled step at a time: a net of a script or an ONNX model, with checkpoints on the way.

  gluongraph train train.py:make_step data.npz --epochs 5
  gluongraph train model.onnx data.npz --loss SoftmaxCrossEntropyLoss --optimizer sgd,momentum=0.9 -o tuned.safetensors
  gluongraph train train.py:network data.npz --loss SoftmaxCrossEntropyLoss --precision bf16-mixed --save bf16.run
  gluongraph train train.py:make_step data.npz --epochs 7 --resume      # go on from the newest checkpoint
  gluongraph train train.py:make_step data.npz --save other.run --test data.npz --json
  gluongraph train step.gga data.npz --discard --save artefact.run -o weights.params   # what `compile -o` has written

DATA is one file or several: the arrays of an .npz in their order there (np.savez(file, x=x, y=y)), an .npy for each
array, or a .safetensors with --arrays. A batch is some rows of each: what the net takes, then what the loss takes.

After each epoch, every --save-every steps, at the end and when it is interrupted (Ctrl-C, SIGTERM) all that the
training needs is saved in a folder, --save; with --resume it goes on from there to the bit, within the epoch. A folder
that holds checkpoints already is used with --resume only.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph.cli import INTERRUPTED, Refused, subject
from gluongraph.cli.inspect import planned
from gluongraph.cli.words import arrays, count, sentence
from gluongraph.errors import pluralize
from gluongraph.host.progress import task
from gluongraph.host.terminal import as_json
from gluongraph.storage import Array

if TYPE_CHECKING:
    from gluongraph.gluon.data import DataLoader
    from gluongraph.step import TrainStep


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.epilog = subject.TEACHING
    parser.add_argument("subject", metavar="SUBJECT", help="script.py:function, a script, model.onnx or artefact.gga")
    parser.add_argument("data", metavar="DATA", type=Path, nargs="+", help=".npz, .npy or .safetensors")
    parser.add_argument("--epochs", type=count, default=1, metavar="N", help="in all (%(default)s)")
    parser.add_argument("--steps", type=count, metavar="N", help="in all, within these epochs")
    parser.add_argument("--seed", type=int, default=0, help="of weights, dropout and the order of rows (%(default)s)")
    parser.add_argument("--no-shuffle", action="store_true", help="batches in the order of the file")
    parser.add_argument("--discard", action="store_true", help="leave out the last batch of an epoch if it is smaller")
    parser.add_argument("--test", type=Path, action="append", metavar="FILE", help="the loss on these after each epoch")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="of checkpoints (SUBJECT's name, .run)")
    parser.add_argument("--save-every", type=count, metavar="N", help="steps, besides the ends of epochs")
    parser.add_argument("--keep", type=count, default=3, metavar="N", help="checkpoints that stay (%(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="at the end: .gga, .onnx, or parameters")
    parser.add_argument("--json", action="store_true", help="print what happened for machines, at the end")
    subject.trust_argument(parser)
    subject.arguments(parser, data=False)


@dataclass
class Past:
    """What has been trained: steps, epochs, and of the epoch that is going on losses and how many there were."""

    step: int = 0
    epoch: int = 0
    total: float = 0.0
    seen: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def loss(self) -> float:
        """The mean over the samples of this epoch so far."""
        return self.total / self.seen if self.seen else float("nan")


def run(options: argparse.Namespace) -> int:
    """Train. 130 if it was interrupted."""
    subject.refuse(options, ["input"], "for a batch that is made up: here the data has shapes")
    data = arrays(options.data, options.arrays)
    test = arrays(options.test, options.arrays or list(data)) if options.test else {}
    if options.output is not None and not options.output.absolute().parent.is_dir():
        raise Refused(f"{options.output}: there is no such folder")
    fixed = _declared(options)
    size = options.batch_size or _exported(options) or fixed or 32
    if fixed is not None and size == fixed:
        _check_last_batches(options, fixed, data, test)
    found = subject.find(options.subject, options, tuple(array[:size] for array in data.values()))
    if found.step.trainer is None:
        raise Refused(f"{options.subject} predicts, it does not train: give a --loss, as SoftmaxCrossEntropyLoss")
    _check_output(found, options.output)
    folder = _folder(options)  # last of what may be wrong: to go on is no way out of what has no step
    started = time.perf_counter()
    planned(found)
    _say(options, f"{_told(data)}; compiled in {time.perf_counter() - started:.1f} s")
    training = Training(found, _loader(data, size, options), folder, options)
    if options.resume:
        training.resume()
    with stopping() as stop:
        training.run(stop, _batches(test, size))
    return training.end(stop.asked)


def _exported(options: argparse.Namespace) -> int:
    """The rows of a batch that an artefact was exported for; 0 of anything else."""
    if not options.subject.endswith(".gga"):
        return 0
    batch = subject.find(options.subject, argparse.Namespace(**{**vars(options), "data": None, "arrays": None})).batch
    return len(batch[0]) if batch else 0


def _declared(options: argparse.Namespace) -> int | None:
    """The rows of a batch, where an ONNX model declares them as one number; None where any number will do."""
    if not options.subject.endswith(".onnx") or not Path(options.subject).exists():
        return None
    fixed: int | None = subject.model(Path(options.subject), options).fixed_batch
    return fixed


def _check_last_batches(options: argparse.Namespace, fixed: int, *data: Mapping[str, Array]) -> None:
    """Refuse now, and not at the end of an epoch, rows that are no whole number of a model's batches."""
    from gluongraph.gluon.data.sampler import last_batch_misfit

    ways = ("--discard leaves it out, ", "give a whole number of batches to --test, ")
    for rows, way in zip(data, ways, strict=True):
        misfit = last_batch_misfit(fixed, len(next(iter(rows.values()), ())))
        if misfit and not (options.discard and rows is data[0]):
            export = "or export the model with a free first axis (torch.onnx.export: dynamic_shapes)"
            raise Refused(f"{options.subject}: {misfit}: {way}{export}")


def _folder(options: argparse.Namespace) -> Path:
    """Where checkpoints go."""
    from gluongraph.runtime.checkpoint import survey

    folder: Path = options.save or Path(Path(options.subject.rpartition(":")[0] or options.subject).stem + ".run")
    if folder.exists() and not folder.is_dir():
        raise Refused(f"{folder} is a file; checkpoints go into a folder: --save")
    if not folder.absolute().parent.is_dir():
        raise Refused(f"{folder.parent}: there is no such folder")
    there = folder.is_dir() and survey(folder)
    if there and not options.resume:
        raise Refused(f"{folder} holds checkpoints: --resume goes on from them, --save names another folder")
    if options.resume and not there:
        raise Refused(f"{folder} holds no checkpoint to go on from: leave --resume out")
    try:  # now, and not after an epoch
        with tempfile.TemporaryFile(dir=folder if folder.is_dir() else folder.absolute().parent):
            return folder
    except OSError as error:
        raise Refused(f"{folder} cannot be written ({error.strerror}): --save names another folder") from None


def _told(data: Mapping[str, Array]) -> str:
    rows = len(next(iter(data.values())))
    return f"{pluralize(rows, 'row')} of " + ", ".join(
        f"{name} {a.dtype}{list(a.shape[1:])}" for name, a in data.items()
    )


def _loader(data: Mapping[str, Array], size: int, options: argparse.Namespace) -> DataLoader:
    from gluongraph.gluon.data import ArrayDataset, DataLoader

    rows = len(next(iter(data.values())))
    if size > rows and options.discard:
        raise Refused(f"{pluralize(rows, 'row')} of data: fewer than a batch of {size}, and --discard leaves them out")
    last = "discard" if options.discard else "keep"
    return DataLoader(ArrayDataset(*data.values()), size, shuffle=not options.no_shuffle, last_batch=last)


def _batches(data: Mapping[str, Array], size: int) -> list[tuple[Array, ...]]:
    rows = len(next(iter(data.values()), ()))
    return [tuple(a[i : i + size] for a in data.values()) for i in range(0, rows, size)]


def _say(options: argparse.Namespace, text: str) -> None:
    if not options.json:
        print(text, flush=True)


class Training:
    """A step on its way through epochs."""

    def __init__(self, found: subject.Subject, loader: DataLoader, folder: Path, options: argparse.Namespace):
        self.step, self.batch, self.loader = found.step, found.batch, loader
        self.folder, self.options = folder, options
        self.past, self.saved = Past(), ""
        self.done, self.seconds = 0, 0.0  # steps of this process, and their time
        self._named = False

    def resume(self) -> None:
        """Go on from the newest checkpoint."""
        try:
            extra = self.step.load(self.folder)
        except (ValueError, OSError) as error:
            raise Refused(sentence(error)) from None
        if {"past", "loader"} - extra.keys():
            raise Refused(f"{self.folder}: this checkpoint was not written by gluongraph train")
        self.past = Past(**extra["past"])
        self.loader.load_state_dict(extra["loader"])
        _say(self.options, f"goes on after step {self.past.step}, in epoch {self.past.epoch + 1}")

    def run(self, stop: Stop, test: Sequence[tuple[Array, ...]]) -> None:
        """All epochs that are left, or until somebody asks to stop."""
        past, options = self.past, self.options
        left = (options.epochs - past.epoch) * len(self.loader)
        with task(left, "training") as further:
            while past.epoch < options.epochs and not self._over(stop):
                if not self._epoch(stop, further):
                    return
                row = {"epoch": past.epoch + 1, "step": past.step, "loss": past.loss}
                if test:
                    row["test"] = self._evaluate(test)
                past.history.append(row)
                past.epoch, past.total, past.seen = past.epoch + 1, 0.0, 0
                _say(options, self._line(row))
                self._save()

    def _epoch(self, stop: Stop, further: Any) -> bool:
        """What is left of an epoch. False if it was left in the middle, and saved."""
        past = self.past
        every = self.options.save_every
        for batch in self.loader:
            started = time.perf_counter()
            loss = self.step(*(batch if isinstance(batch, list) else [batch]))
            self.seconds += time.perf_counter() - started
            values = np.asarray((loss[0] if isinstance(loss, (tuple, list)) else loss).asnumpy(), np.float64)
            past.total += float(values.mean()) * values.shape[0] if values.shape else float(values)
            past.seen += values.shape[0] if values.shape else 1
            past.step += 1
            self.done += 1
            further(words=f"loss {past.loss:.4f}")
            last = self.loader.state_dict()["batches"] == len(self.loader)
            if not last and every and past.step % every == 0:
                self._save()
            if not last and self._over(stop):
                self._save()
                return False
        return True

    def _over(self, stop: Stop) -> bool:
        return stop.asked or (self.options.steps is not None and self.past.step >= self.options.steps)

    def _evaluate(self, test: Sequence[tuple[Array, ...]]) -> float:
        found = [np.asarray(_first(self.step.evaluate(*batch)).asnumpy(), np.float64) for batch in test]
        return float(np.concatenate([v.reshape(v.shape[0] if v.shape else 1, -1).mean(1) for v in found]).mean())

    def _line(self, row: Mapping[str, Any]) -> str:
        test = f"  test {row['test']:.4f}" if "test" in row else ""
        head = f"epoch {row['epoch']}/{self.options.epochs}  step {row['step']}"
        return f"{head}  loss {row['loss']:.4f}{test}  {self.rate:.1f} steps/s"

    @property
    def rate(self) -> float:
        """Steps a second, of this process."""
        return self.done / self.seconds if self.seconds else 0.0

    def _save(self) -> None:
        extra = {"past": vars(self.past), "loader": self.loader.state_dict()}
        self.saved = self.step.save(self.folder, extra=extra, keep=self.options.keep)

    def end(self, interrupted: bool) -> int:
        """Say how it went, and how to go on."""
        options = self.options
        if options.output is not None and not interrupted:
            _put_out(self.step, options.output, self.batch)
        if options.json:
            told = {"steps": self.past.step, "steps_per_second": self.rate, "epochs": self.past.history}
            as_json({**told, "saved": self.saved, "interrupted": interrupted})
        if not interrupted:
            _say(options, f"{pluralize(self.past.step, 'step')}; saved in {self.saved or self.folder}")
            return 0
        where = self.saved or f"{self.folder}, as it was"
        print(f"interrupted after step {self.past.step}; saved in {where}; to go on:", file=sys.stderr)
        print(f"  {_again(options)}", file=sys.stderr)
        return INTERRUPTED


def _check_output(found: subject.Subject, path: Path | None) -> None:
    """Refuse before training what could not be written after it."""
    if path is None:
        return
    program = path.suffix == ".gga" or path.suffix == ".onnx"
    if program and found.name.endswith(".gga"):
        raise Refused(f"{path}: an artefact holds no program to write it from; -o tuned.safetensors has its parameters")
    needed = {".gga": "", ".onnx": "export_onnx"}.get(path.suffix, "save_parameters")
    if needed and not hasattr(found.step.net, needed):
        raise Refused(f"{path}: the step was made of a function, not of a net; -o step.gga has all of it")


def _put_out(step: TrainStep, path: Path, batch: tuple[Any, ...]) -> None:
    """What has been trained, by the name of the file: all of the step, the net as ONNX, or its parameters."""
    net: Any = step.net
    if path.suffix == ".gga":
        step.export(path, batches=[batch])
    elif path.suffix == ".onnx":
        net.export_onnx(str(path), *batch[: step.inputs or max(1, len(batch) - 1)])
    else:
        net.save_parameters(str(path))


def _first(found: Any) -> Any:
    return found[0] if isinstance(found, (tuple, list)) else found


def _again(options: argparse.Namespace) -> str:
    """The command that goes on."""
    given = [word for word in options.given if word != "--resume"]
    at = given.index("--") if "--" in given else len(given)
    return shlex.join(["gluongraph", *given[:at], "--resume", *given[at:]])


@dataclass
class Stop:
    """Has somebody asked to stop?"""

    asked: bool = False


@contextmanager
def stopping() -> Iterator[Stop]:
    """Within: the first Ctrl-C or SIGTERM is a request, the second Ctrl-C an interrupt as always."""
    stop = Stop()

    def ask(number: int, frame: object) -> None:
        stop.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
