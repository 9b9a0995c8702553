"""Empty names of files and folders: refused by every function that takes a name, before anything is done."""

from __future__ import annotations

import inspect
import os
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gluongraph as mx
from gluongraph import gluon, image, init, io, model, nd, onnx, profiler, recordio, symbol
from gluongraph.artefact.bundle import bundle
from gluongraph.artefact.load import ExportedStep
from gluongraph.contrib import embedding
from gluongraph.errors import ArgumentError
from gluongraph.gluon import SymbolBlock, data, nn
from gluongraph.gluon.contrib import estimator
from gluongraph.gluon.data import vision
from gluongraph.host.file_names import check_name
from gluongraph.lightning import LightningDataModule, LightningModule
from gluongraph.step import TrainStep
from tests.test_api import MODULES, module, public

HERE = pathlib.Path(__file__).name


def net() -> nn.Dense:
    made = nn.Dense(2, in_units=3)
    made.initialize()
    return made


def trainer() -> gluon.Trainer:
    return gluon.Trainer(net().collect_params(), "sgd", {"learning_rate": 0.1})


def step() -> TrainStep:
    block = net()
    return mx.compile(block, gluon.loss.L2Loss(), gluon.Trainer(block.collect_params(), "sgd", {"learning_rate": 0.1}))


def loaded() -> ExportedStep:
    """A loaded step without its artefact: a name is looked at first."""
    return object.__new__(ExportedStep)


def symbol_block() -> SymbolBlock:
    return SymbolBlock(mx.sym.var("data"), mx.sym.var("data"))


# What takes a name, by its own name and the argument's.
CALLS: dict[str, Callable[[Any], Any]] = {
    "Block.save_parameters.filename": lambda name: net().save_parameters(name),
    "Block.load_parameters.filename": lambda name: net().load_parameters(name),
    "Block.save_params.filename": lambda name: net().save_params(name),
    "Block.load_params.filename": lambda name: net().load_params(name),
    "Block.save.prefix": lambda name: net().save(name),
    "Block.load.prefix": lambda name: net().load(name),
    "HybridBlock.export.path": lambda name: net().export(name),
    "HybridBlock.export_onnx.path": lambda name: net().export_onnx(name, nd.ones((1, 3))),
    "SymbolBlock.imports.symbol_file": lambda name: SymbolBlock.imports(name, "data"),
    "SymbolBlock.imports.param_file": lambda name: SymbolBlock.imports("net-symbol.json", "data", name),
    "SymbolBlock.export.path": lambda name: symbol_block().export(name),
    "ParameterDict.save.filename": lambda name: net().collect_params().save(name),
    "ParameterDict.load.filename": lambda name: net().collect_params().load(name),
    "Trainer.save_states.fname": lambda name: trainer().save_states(name),
    "Trainer.load_states.fname": lambda name: trainer().load_states(name),
    "KVStore.save_optimizer_states.fname": lambda name: mx.kv.create().save_optimizer_states(name),
    "KVStore.load_optimizer_states.fname": lambda name: mx.kv.create().load_optimizer_states(name),
    "TrainStep.save.dir": lambda name: step().save(name),
    "TrainStep.load.dir": lambda name: step().load(name),
    "TrainStep.export.path": lambda name: step().export(name),
    "TrainStep.export_onnx.path": lambda name: step().export_onnx(name),
    "ExportedStep.export.path": lambda name: loaded().export(name),
    "load.path": mx.load,
    "bundle.artefact": lambda name: bundle(name, "folder"),
    "bundle.folder": lambda name: bundle("step.gga", name),
    "nd.save.fname": lambda name: nd.save(name, [nd.ones((1,))]),
    "nd.load.fname": nd.load,
    "Symbol.save.fname": lambda name: mx.sym.var("x").save(name),
    "symbol.load.fname": symbol.load,
    "symbol.write.path": lambda name: symbol.write(name, 0, mx.sym.var("x"), {}),
    "model.save_checkpoint.prefix": lambda name: model.save_checkpoint(name, 1, None, {}, {}),
    "model.load_checkpoint.prefix": lambda name: model.load_checkpoint(name, 1),
    "model.load_params.prefix": lambda name: model.load_params(name, 1),
    "onnx.load.model": onnx.load,
    "onnx.load_graph.source": onnx.load_graph,
    "Load.param": init.Load,
    "set_config.filename": lambda name: profiler.set_config(filename=name),
    "profiler_set_config.filename": lambda name: profiler.profiler_set_config(filename=name),
    "MXRecordIO.uri": lambda name: recordio.MXRecordIO(name, "w"),
    "MXIndexedRecordIO.uri": lambda name: recordio.MXIndexedRecordIO("unused.idx", name, "r"),
    "MXIndexedRecordIO.idx_path": lambda name: recordio.MXIndexedRecordIO(name, "unused.rec", "w"),
    "RecordFileDataset.filename": data.RecordFileDataset,
    "ImageRecordDataset.filename": vision.ImageRecordDataset,
    "ImageFolderDataset.root": vision.ImageFolderDataset,
    "ImageListDataset.imglist": lambda name: vision.ImageListDataset(".", name),
    "imread.filename": image.imread,
    "ImageRecordIter.path_imgrec": lambda name: io.ImageRecordIter(name, (3, 2, 2), 1),
    "MNISTIter.image": lambda name: io.MNISTIter(name, "labels"),
    "MNISTIter.label": lambda name: io.MNISTIter("images", name),
    "CSVIter.data_csv": lambda name: io.CSVIter(name, (1,)),
    "CSVIter.label_csv": lambda name: io.CSVIter("data.csv", (1,), name),
    "CustomEmbedding.pretrained_file_path": embedding.CustomEmbedding,
    "CheckpointHandler.model_dir": estimator.CheckpointHandler,
    "LightningModule.load_from_checkpoint.hparams_file": (
        lambda name: LightningModule.load_from_checkpoint("a.ckpt", hparams_file=name)
    ),
    "LightningDataModule.load_from_checkpoint.hparams_file": (
        lambda name: LightningDataModule.load_from_checkpoint("a.ckpt", hparams_file=name)
    ),
    "download.path": lambda name: gluon.utils.download("https://localhost/data.zip", name),
}
FOLDERS = {"TrainStep.save.dir", "TrainStep.load.dir", "bundle.folder", "ImageFolderDataset.root"}
FOLDERS |= {"CheckpointHandler.model_dir"}

# What reads like the name of a file and need not be one, by the argument's name or by both.
OTHERS = {
    "root": "an empty one is the default folder, as in MXNet",
    "ImageListDataset.root": "the folder that names in the list are relative to: an empty one is the current one",
    "path_imgrec": "an empty one is none, as in MXNet",
    "path_imglist": "an empty one is none, as in MXNet",
    "path_root": "the folder that names in the list are relative to",
    "path_imgidx": "an empty one is none, as in MXNet",
    "read_image.fname": "of a list of images",
    "test_utils.download.fname": "an empty one is the last part of the URL",
    "ModelCheckpoint.filename": "an empty one is the default pattern, as in Lightning",
    "ModelCheckpoint.format_checkpoint_name.filename": "an empty one is the default pattern, as in Lightning",
    "OnExceptionCheckpoint.filename": "what stands before .ckpt, as in Lightning",
    "KVStoreBase": "says what stores may do, and refuses",
}
NAMES = re.compile(
    r"(filename|fname|path|path_\w+|uri|idx_path|dir|model_dir|folder|root|\w+_file|\w+_csv|\w+_file_path)"
)


@pytest.mark.parametrize("empty", ["", b""], ids=["text", "bytes"])
@pytest.mark.parametrize("name", CALLS)
def test_an_empty_name_is_refused(
    name: str, empty: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if empty == b"" and name in ("onnx.load.model", "onnx.load_graph.source", "ImageListDataset.imglist", "Load.param"):
        return  # they take bytes for something else, or not at all
    config = dict(profiler._PROFILE.config)
    with pytest.raises(ArgumentError) as caught:
        CALLS[name](empty)
    what = "folder" if name in FOLDERS else "file"
    first, where, help = str(caught.value).split("\n")
    assert re.fullmatch(rf"[\w.]+: the name of the {what} is empty", first)
    assert HERE in where
    assert re.fullmatch(r"  help: [\w.]+\(.*'.+'.*\)", help)
    assert list(tmp_path.iterdir()) == [] and config == profiler._PROFILE.config


def owners() -> Iterator[tuple[str, Any]]:
    """All public functions, classes and their methods, by the names that the table has."""
    for each in (*MODULES, "gluongraph.model", "gluongraph.profiler", "gluongraph.symbol"):
        found = module(each)
        for name in public(found):
            value = getattr(found, name)
            if inspect.isclass(value) and value.__module__.startswith("gluongraph."):
                yield name, value
                yield from ((f"{name}.{key}", part) for key, part in vars(value).items() if not key.startswith("_"))
            elif inspect.isfunction(value):
                yield f"{each.rpartition('.')[2]}.{name}", value
    for cls in (TrainStep, ExportedStep):
        yield from ((f"{cls.__name__}.{key}", part) for key, part in vars(cls).items() if not key.startswith("_"))


def test_the_table_has_all_that_take_a_name() -> None:
    missing = set()
    for name, value in owners():
        value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if not callable(value) or (not inspect.isclass(value) and not inspect.isfunction(value)):
            continue
        try:
            parameters = inspect.signature(value).parameters
        except ValueError:
            continue
        for key in parameters:
            told = {f"{name}.{key}", f"{name.rpartition('.')[2]}.{key}"}
            if NAMES.fullmatch(key) and not (told | {key, name.split(".")[0]}) & (CALLS.keys() | OTHERS.keys()):
                missing.add(f"{name}.{key}")
    assert not missing


class Named:
    """A path that is no text."""

    def __init__(self, name: str | bytes):
        self._name = name

    def __fspath__(self) -> Any:
        return self._name


def test_other_names_go_on_working(tmp_path: pathlib.Path) -> None:
    block, file = net(), tmp_path / "net.params"
    for name in (str(file), file, Named(str(file))):
        nd.save(name, {"x": nd.ones((1,))})  # type: ignore[arg-type]
        assert list(nd.load(name)) == list(nd.load(os.fsencode(file))) == ["x"]  # type: ignore[arg-type]
        block.save_parameters(name)  # type: ignore[arg-type]
        block.load_parameters(name)  # type: ignore[arg-type]
        block.load_parameters(os.fsencode(file))  # type: ignore[arg-type]
        file.unlink()
    with pytest.raises(ArgumentError, match="f: the name of the file is empty"):
        check_name("f", Named(""), "f('x')")
    check_name("f", None, "f('x')")
