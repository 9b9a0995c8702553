"""Train the LightningModule of a file: its options, those of its data module and of the Trainer on the command line.

  gluongraph fit module.py --trainer.max_epochs 2 --model.lr 0.1
  gluongraph fit module.py --print_config > run.yaml              # all options, as a file to be edited
  gluongraph fit module.py --config run.yaml --data.batch_size 16
  gluongraph fit module.py:Net:Data --trainer.fast_dev_run true   # the classes, where the file has several
  gluongraph fit module.py validate --trainer.logger false        # or test, predict; --ckpt_path with a checkpoint
  gluongraph fit module.py --help                                 # its options

FILE is Python that defines a LightningModule of gluongraph.lightning and, unless the module makes its loaders itself, a
LightningDataModule. The arguments of their `__init__` are the options --model.NAME and --data.NAME, with their types
and defaults. A run writes its options into config.yaml beside its logs, which --config reads again.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from gluongraph.cli import Refused, subject

_MODES = ("fit", "validate", "test", "predict")


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.usage = "gluongraph fit FILE[:MODULE[:DATA]] [{fit,validate,test,predict}] [options of the module]"
    parser.add_argument(
        "subject", metavar="FILE", help="module.py, or module.py:Module, or module.py:Module:DataModule"
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="gluongraph fit FILE --help shows them")


def run(options: argparse.Namespace) -> int:
    """Train, or evaluate."""
    cli = _lightning_cli()
    name, *chosen = options.subject.split(":")
    path = Path(name)
    if not path.exists():
        raise Refused(f"there is no file {path}")
    if path.suffix != ".py" or len(chosen) > 2:
        raise Refused(f"{options.subject}: wanted is module.py, module.py:Module or module.py:Module:DataModule")
    words = list(options.words)
    if words and not words[0].startswith("-") and words[0] not in _MODES:
        raise Refused(f"{words[0]!r} is none of {', '.join(_MODES)}, one of which may follow the file")
    mode = words.pop(0) if words and words[0] in _MODES else "fit"
    with _beside(path):
        model, data = _classes(path, chosen)
        quiet = {"exit_on_error": False, "prog": f"gluongraph fit {options.subject}"}
        try:
            made = cli.LightningCLI(
                model,
                data,
                args=[mode, *words],
                save_config_kwargs={"beside_logs": True},
                parser_kwargs={**quiet, **{each: {"exit_on_error": False} for each in _MODES}},
            )
        except argparse.ArgumentError as error:
            raise Refused(
                f"{' '.join(str(error).split())}; gluongraph fit {options.subject} --help shows the options"
            ) from None
    return 0 if made.trainer.state.finished else 1


def _lightning_cli() -> Any:
    try:
        from gluongraph.lightning import cli
    except ModuleNotFoundError as error:
        if error.name not in (None, "jsonargparse"):
            raise
        raise Refused("jsonargparse is not installed: pip install 'gluongraph[lightning]'") from None
    return cli


@contextmanager
def _beside(path: Path) -> Iterator[None]:
    """Within: modules beside the file are found, as when it is run."""
    before = sys.path[0]
    sys.path[0] = str(path.resolve().parent)
    try:
        yield
    finally:
        sys.path[0] = before


def _classes(path: Path, chosen: list[str]) -> tuple[Any, Any]:
    """The module's class and that of the data module, or None, in a file."""
    from gluongraph.lightning import LightningDataModule, LightningModule

    with subject.as_script(path, []):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    models, data = _defined(module, LightningModule), _defined(module, LightningDataModule)
    wanted = [_named(path, module, name, {**models, **data}) for name in chosen]
    if not wanted and not models:
        raise Refused(f"{path} defines no LightningModule{_of_lightning(module)}")
    model = wanted[0] if wanted else _single(path, models, "LightningModules", "")
    if len(wanted) > 1:
        return model, wanted[1]
    return model, _single(path, data, "LightningDataModules", f":{model.__name__}") if data else None


def _defined(module: ModuleType, kind: type) -> dict[str, Any]:
    """The classes of a kind that a file defines itself; those that it imports, where it defines none."""
    found = {n: c for n, c in vars(module).items() if isinstance(c, type) and issubclass(c, kind) and c is not kind}
    own = {name: each for name, each in found.items() if each.__module__ == module.__name__}
    return own or {n: c for n, c in found.items() if not c.__module__.startswith("gluongraph.")}


def _named(path: Path, module: ModuleType, name: str, classes: dict[str, Any]) -> Any:
    found = getattr(module, name, None)
    if isinstance(found, type):
        return found
    if inspect.isfunction(found):
        made = inspect.signature(found, eval_str=True).return_annotation
        if isinstance(made, type) and made is not inspect.Signature.empty:
            return found
        raise Refused(f"{path}:{name} is a function that does not say what it makes: def {name}() -> Module")
    raise Refused(f"{path} has no {name}; its classes: {', '.join(classes) or 'none'}")


def _single(path: Path, classes: dict[str, Any], what: str, before: str) -> Any:
    if len(classes) > 1:
        ways = " or ".join(f"{path}{before}:{name}" for name in classes)
        raise Refused(f"{path} defines {len(classes)} {what}; say which one: {ways}")
    return next(iter(classes.values()))


def _of_lightning(module: ModuleType) -> str:
    """Has it some of Lightning's own? Then what to do."""
    own = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
    for each in own:
        if any(c.__name__ == "LightningModule" and "lightning" in c.__module__ for c in each.__mro__):
            return f" of gluongraph.lightning; {each.__name__} is Lightning's own: import gluongraph.lightning as L"
    return " (a class derived from gluongraph.lightning.LightningModule)"
