"""What a command works on: the training step of a script, of a function in a script, an ONNX model or an artefact."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph.cli import Failed, Refused
from gluongraph.cli.words import Named, Shape, arrays, count, named, random_array, sentence, settings, shape
from gluongraph.errors import MXNetError, is_own_file, pluralize
from gluongraph.ir.graph import TensorType
from gluongraph.storage import Array

if TYPE_CHECKING:
    from gluongraph.step import TrainStep

TEACHING = """\
SUBJECT is one of

  train.py             a script that makes a step with mx.compile. It is run, with the arguments after --, up to the
                       first call of the step, which is caught with its batch; --nth 2 takes the second step it calls
  train.py:make_step   a function in it, called without arguments (so nothing under __name__ == "__main__" runs), which
                       returns the step and a batch, as `return step, x, y`; or just a net or a step
  model.onnx           an ONNX model
  digits.gga           an artefact, as `step.export` and `gluongraph compile -o` write it. Its compiled code is run only
                       if you have exported it here, or a key that is trusted here has signed it (gluongraph key);
                       otherwise its graph is compiled again, and times are of that

A model, or a net that a function returns, gets --loss and --optimizer; without a loss it is what predicts. Its batch
is the first of --data, or made up for --input shapes.
"""


@dataclass
class Subject:
    """A step, and a batch that it may be called with; none where nothing tells its shapes. One that is `made_up` has
    the right types, and numbers that need not be labels or token ids."""

    name: str
    step: TrainStep
    batch: tuple[Any, ...]
    made_up: bool = False


class Caught(BaseException):
    """Ends a script: its step is about to be called."""

    def __init__(self, step: TrainStep, batch: tuple[Any, ...]):
        super().__init__()
        self.step, self.batch = step, batch


def arguments(parser: argparse.ArgumentParser, data: bool = True) -> None:
    """The options that say what a subject's step is."""
    group = parser.add_argument_group("the step of a model")
    add = group.add_argument
    add("--loss", type=named, metavar="NAME", help="of gluon.loss, with settings: SoftmaxCrossEntropyLoss,axis=1")
    add("--optimizer", type=named, metavar="NAME", help="with settings: sgd,learning_rate=0.1,momentum=0.9 (adam)")
    add("--inputs", type=count, metavar="N", help="how many arrays of a batch go to the net; the others to the loss")
    add("--precision", metavar="P", help="as mx.compile takes it: 32, bf16-mixed, ...")
    add("--compile", type=settings, metavar="SETTINGS", help="others that it takes: clip_norm=1.0,remat=auto")
    add("--freeze", metavar="PATTERN", help="parameters of an ONNX model that are not trained")
    add("--trained", metavar="PATTERN", help="arrays of an ONNX model that are its parameters")
    add("--batch-size", type=count, metavar="N", help="rows of a batch (32)")
    add("--arrays", type=_names, metavar="NAMES", help="those of the data that make a batch, in order: x,y")
    add("--input", type=shape, action="append", metavar="SHAPE", help="of one array: 32,3,8,8 or tokens=i32:32,128")
    if data:
        add("--data", type=Path, action="append", metavar="FILE", help=".npz, .npy or .safetensors")
    group = parser.add_argument_group("the step of a script")
    group.add_argument("--nth", type=count, metavar="N", help="which of the steps that it calls (1)")
    parser.set_defaults(scripts=True)


def trust_argument(parser: argparse.ArgumentParser) -> None:
    """The option that lets the code of any artefact run. What only looks at an artefact does not have it."""
    parser.add_argument(
        "--trust",
        choices=("keys", "file"),
        default="keys",
        help="whose compiled code may run: yours and trusted keys', or whatever is in the artefact (%(default)s)",
    )


def _names(text: str) -> list[str]:
    return text.split(",")


OF_A_NET = ("loss", "optimizer", "inputs", "precision", "compile")
OF_ONNX = ("freeze", "trained")
OF_A_BATCH = ("data", "arrays", "input", "batch_size")


def refuse(options: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Raise Refused where one of these options is given: it would change nothing."""
    if given := [name for name in names if getattr(options, name, None)]:
        raise Refused(f"--{given[0].replace('_', '-')} is {why}")


def refuse_all(options: argparse.Namespace, name: str) -> None:
    """The same of all options that say what a subject's step is, where there is a written one."""
    refuse(options, (*OF_A_NET, *OF_A_BATCH, *OF_ONNX, "nth"), f"for steps that are made now: {name} is written")
    if options.arguments:
        raise Refused(f"{name} is no script that would take arguments after --")


def find(name: str, options: argparse.Namespace, batch: tuple[Any, ...] = ()) -> Subject:
    """The subject of that name; `batch` takes the place of its own. Weights that it draws are the same every time.

    Raises:
        Refused: there is none, or it is not what its name says.
        Failed: the script did.
    """
    from gluongraph import random

    seed = getattr(options, "seed", 0)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    path, function = _parts(name)
    if not path.exists():
        raise Refused(f"there is no file {path}")
    if path.suffix != ".onnx":
        refuse(options, OF_ONNX, f"for ONNX models: {name} is none")
    if path.suffix != ".py" or function:
        refuse(options, ["nth"], f"for scripts that run up to the call of a step: {name} is none")
    if path.suffix != ".py" and options.arguments:
        raise Refused(f"{name} is no script that would take arguments after --")
    if path.suffix == ".py":
        made = _returned(path, function, options) if function else _caught(path, options)
    elif path.suffix == ".onnx":
        made = (model(path, options),)
    elif path.suffix == ".gga":
        made = _artefact(path, options)
    else:
        raise Refused(f"{name}: a subject is a script.py, a script.py:function, a model.onnx or an artefact.gga")
    if made[1:] and not batch:
        refuse(options, OF_A_BATCH, f"for what has no batch of its own: {name} has one")
    found = _subject(name, made[0], batch or made[1:], options)
    has_own = bool(batch or getattr(options, "data", None) or (made[1:] and path.suffix != ".gga"))
    return replace(found, made_up=not has_own)


def _parts(name: str) -> tuple[Path, str]:
    """The file, and the function in it."""
    file, colon, function = name.rpartition(":")
    return (Path(file), function) if colon and file.endswith(".py") else (Path(name), "")


def _subject(name: str, made: Any, batch: tuple[Any, ...], options: argparse.Namespace) -> Subject:
    """What a function or a file gave: a step, with or without a batch, or a net to be made one."""
    from gluongraph.gluon import Block
    from gluongraph.step import TrainStep

    if len(batch) == 1 and isinstance(batch[0], (tuple, list)):
        batch = tuple(batch[0])
    if isinstance(made, TrainStep):
        refuse(options, OF_A_NET, f"for nets and models: {name} has made its step already")
        return Subject(name, made, batch or _given(None, options))
    if not isinstance(made, Block):
        raise Refused(f"{name} gives {type(made).__name__}; it gives back a step and a batch, a step, or a net")
    batch = batch or _given(made, options)
    step = _step(made, len(batch), options)
    return Subject(name, step, batch if not batch or options.loss is None else _with_labels(made, batch, options))


# -- scripts


@contextmanager
def as_script(path: Path, given: Sequence[str]) -> Iterator[None]:
    """Within: a script finds its arguments and the modules beside it, and what it prints goes to stderr."""
    argv, modules = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [str(path), *given], str(path.resolve().parent)
    try:
        with redirect_stdout(sys.stderr):
            yield
    except Refused:
        raise
    except SyntaxError as error:
        raise Refused(f"{error.filename}:{error.lineno} is no Python: {error.msg}") from None
    except (Exception, SystemExit) as error:
        raise Failed(f"{_place(error, path)}{type(error).__name__}: {sentence(error)}") from error
    finally:
        sys.argv, sys.path[0] = argv, modules


def _place(error: BaseException, path: Path) -> str:
    """The line of the script where an error came from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_own_file(f.filename)]
    here = [f for f in frames if Path(f.filename).resolve() == path.resolve()]
    return f"{path}:{here[-1].lineno}: " if here else f"{path}: "


def _caught(path: Path, options: argparse.Namespace) -> tuple[Any, ...]:
    """The step that a program calls, and its batch."""
    seen: list[TrainStep] = []
    nth = options.nth or 1

    def called(step: TrainStep, batch: tuple[Any, ...]) -> None:
        if not any(step is each for each in seen):
            seen.append(step)
            if len(seen) == nth:
                raise Caught(step, batch)

    try:
        with as_script(path, options.arguments), _watching(called):
            try:
                runpy.run_path(str(path), run_name="__main__")
            except SystemExit as ended:
                if ended.code not in (None, 0):
                    raise
    except Caught as caught:
        return (caught.step, *caught.batch)
    told = f"{pluralize(len(seen), 'step')} of mx.compile" if seen else "no step of mx.compile"
    raise Refused(f"{path} has called {told}, wanted is number {nth}; or name a function: {path}:make_step")


@contextmanager
def _watching(called: Callable[[TrainStep, tuple[Any, ...]], None]) -> Iterator[None]:
    """Within: `called` hears of every call of a step before it happens."""
    from gluongraph.step import TrainStep

    before = {name: getattr(TrainStep, name) for name in ("__call__", "accumulate", "predict")}

    def heard(name: str) -> Callable[..., Any]:
        def call(step: TrainStep, *batch: Any, **others: Any) -> Any:
            if name != "predict" or step.trainer is None:
                called(step, batch)
            return before[name](step, *batch, **others)

        return call

    for name in before:
        setattr(TrainStep, name, heard(name))
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(TrainStep, name, method)


def _returned(path: Path, function: str, options: argparse.Namespace) -> tuple[Any, ...]:
    """What a function of a script gives back, or what is there under that name."""
    with as_script(path, options.arguments):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if not hasattr(module, function):
            own = [n for n, part in vars(module).items() if inspect.isfunction(part) and part.__module__ == path.stem]
            raise Refused(f"{path} has no {function}; its functions: {', '.join(own) or 'none'}")
        found = getattr(module, function)
        made = found() if inspect.isfunction(found) else found
    return tuple(made) if isinstance(made, (tuple, list)) and made else (made,)


# -- models


def model(path: Path, options: argparse.Namespace) -> Any:
    """The net of an ONNX model.

    Raises:
        Refused: it cannot be read.
    """
    from gluongraph import onnx

    try:
        return onnx.load(str(path), freeze=options.freeze, trained=options.trained)
    except (MXNetError, OSError) as error:
        raise Refused(sentence(error)) from None


def _artefact(path: Path, options: argparse.Namespace) -> tuple[Any, ...]:
    """The step, and a batch of what it was exported for."""
    from gluongraph.artefact.load import load

    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            step = load(path, trust=getattr(options, "trust", "keys"))
    except (MXNetError, OSError) as error:
        raise Refused(sentence(error)) from None
    for warning in said:
        print(f"gluongraph {options.command}: {warning.message}", file=sys.stderr)
    if getattr(options, "data", None):
        return (step,)
    known = step.batches("predict" if step.trainer is None else "step")
    return (step, *(random_array(ty, i) for i, ty in enumerate(known[0] if known else ())))


def _step(net: Any, arrays: int, options: argparse.Namespace) -> TrainStep:
    """A net with the loss and the optimizer that were asked for."""
    from gluongraph import gluon
    from gluongraph.step.compile import compile

    others = dict(options.compile or {})
    known = {p.name for p in inspect.signature(compile).parameters.values() if p.kind is p.KEYWORD_ONLY}
    if unknown := [key for key in others if key not in known]:
        raise Refused(f"mx.compile has no setting {unknown[0]}; it has {', '.join(sorted(known))}")
    if options.precision:
        others["precision"] = options.precision
    if options.loss is None and options.optimizer is not None:
        raise Refused("--optimizer trains by a --loss, as SoftmaxCrossEntropyLoss or L2Loss")
    if options.loss is None and options.inputs is not None:
        raise Refused("--inputs says how many arrays the --loss leaves to the net")
    try:
        if options.loss is None:
            return compile(net, **others)
        how: Named = options.optimizer or Named("adam", {})
        trainer = gluon.Trainer(net.collect_params(), how.name, dict(how.settings))
        others.setdefault("inputs", options.inputs or _inputs(net))
        return compile(net, loss_of(options.loss), trainer, **others)
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise Refused(sentence(error)) from None


def loss_of(asked: Named) -> Any:
    """A loss of gluon.loss, by its name in full or without 'Loss', in any case."""
    from gluongraph.gluon import loss

    names = {name.lower(): name for name in loss.__all__ if name != "Loss"}
    found = names.get(asked.name.lower()) or names.get(asked.name.lower() + "loss")
    if found is None:
        raise Refused(f"there is no loss {asked.name}; there are {', '.join(sorted(names.values()))}")
    return getattr(loss, found)(**asked.settings)


def _inputs(net: Any) -> int:
    """How many arrays a net takes: an ONNX model knows."""
    return len(net.inputs) if hasattr(net, "inputs") else 1


# -- batches


def _given(net: Any, options: argparse.Namespace) -> tuple[Array, ...]:
    """The first batch of the data, or arrays made up for the shapes that were said or that a model declares."""
    if data := getattr(options, "data", None):
        if options.input:
            raise Refused("--data has shapes of its own: leave --input out")
        found = arrays(data, options.arrays)
        return tuple(array[: options.batch_size or 32] for array in found.values())
    refuse(options, ["arrays"], "for --data, whose arrays it names")
    if hasattr(net, "declared"):
        types = _declared(net.declared, options)
    else:
        refuse(options, ["batch_size"], "for --data and for free axes of a model: --input says all extents")
        types = [each.type for each in options.input or ()]
    return tuple(random_array(ty, i) for i, ty in enumerate(types))


def _declared(values: Sequence[Any], options: argparse.Namespace) -> list[TensorType]:
    """The types of a model's inputs, with extents for its free axes."""
    said: list[Shape] = list(options.input or ())
    by_name = {each.name: each.type for each in said if each.name}
    if unknown := [name for name in by_name if name not in [v.name for v in values]]:
        raise Refused(f"the model has no input {unknown[0]}; it has {', '.join(map(str, values))}")
    in_order = iter([each.type for each in said if not each.name])
    found = []
    for value in values:
        ty = by_name.get(value.name) or next(in_order, None)
        if ty is not None:
            found.append(TensorType(ty.shape, value.dtype or ty.dtype))
            continue
        free = [i for i, extent in enumerate(value.shape or ()) if isinstance(extent, str)]
        if value.shape is None or any(i for i in free):
            raise Refused(f"input {value} has axes of any extent: say --input {value.name}=32,... or give --data")
        shape = tuple(options.batch_size or 32 if isinstance(e, str) else e for e in value.shape)
        found.append(TensorType(shape, value.dtype))
    if not any(isinstance(extent, str) for value in values for extent in value.shape or ()):
        refuse(options, ["batch_size"], "for free axes, of which the model has none")
    return found


def _with_labels(net: Any, batch: tuple[Any, ...], options: argparse.Namespace) -> tuple[Any, ...]:
    """A batch of inputs alone with labels made up, for the losses that tell what they want."""
    inputs = options.inputs or _inputs(net)
    if len(batch) > inputs:
        return batch
    from gluongraph.tracing.tracer import trace

    outputs = trace(net, list(map(_as_array, batch)), training=False).graph.outputs
    ty = next(iter(outputs.values())).ty
    name = type(loss_of(options.loss)).__name__
    if name == "SoftmaxCrossEntropyLoss" and options.loss.settings.get("sparse_label", True):
        axis = options.loss.settings.get("axis", -1) % ty.rank
        classes = TensorType(ty.shape[:axis] + ty.shape[axis + 1 :], "i32")
        return (*batch, random_array(classes, len(batch)) % ty.shape[axis])
    if name in ("CTCLoss", "TripletLoss", "CosineEmbeddingLoss", "SDMLLoss"):
        raise Refused(f"labels for {name} cannot be made up: give --data")
    return (*batch, random_array(TensorType(ty.shape), len(batch)))


def _as_array(given: Any) -> Any:
    from gluongraph import nd

    return given if isinstance(given, nd.NDArray) else nd.array(given, dtype=given.dtype)
