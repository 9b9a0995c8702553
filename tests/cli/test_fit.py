"""gluongraph fit: the classes of a file, their options, what is refused."""

from __future__ import annotations

import pathlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest
import yaml

from gluongraph.cli import fit, main

pytest.importorskip("jsonargparse")
pytestmark = pytest.mark.filterwarnings("ignore:an epoch has", "ignore:nothing is logged")
QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]

TWO = """
import gluongraph.lightning as L

class First(L.LightningModule):
    pass

class Second(First):
    def __init__(self, size: int = 3):
        super().__init__()

class Some(L.LightningDataModule):
    pass

class Others(L.LightningDataModule):
    pass

def make(size: int = 2) -> Second:
    return Second(size)

def anything():
    return Second()
"""


@pytest.fixture
def folder(made: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    for name in ("module.py", "data.npz"):
        shutil.copy(made / name, tmp_path)
    (tmp_path / "two.py").write_text(TWO)
    monkeypatch.chdir(tmp_path)
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")
    return tmp_path


@pytest.fixture
def refused(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*words: str) -> str:
        before = {*folder.rglob("*")}
        assert main(["fit", *words]) == 2
        assert {*folder.rglob("*")} - before <= {*folder.rglob("__pycache__*"), *folder.rglob("*.pyc")}
        said = capsys.readouterr().err
        assert said.count("\n") == 1, said
        return said

    return run


def test_a_run_can_be_repeated_from_its_configuration(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "module.py", "--trainer.max_epochs", "2", "--model.lr", "0.05", *QUIET]) == 0
    logs = folder / "lightning_logs"
    first = yaml.safe_load((logs / "version_0" / "config.yaml").read_text())
    assert (first["model"]["lr"], first["trainer"]["max_epochs"], first["seed_everything"]) == (0.05, 2, 0)
    assert main(["fit", "module.py", "--config", str(logs / "version_0" / "config.yaml")]) == 0
    assert yaml.safe_load((logs / "version_1" / "config.yaml").read_text()) == first
    weights = [sorted((logs / f"version_{i}").rglob("params*.safetensors"))[-1].read_bytes() for i in (0, 1)]
    assert weights[0] == weights[1]
    (saved,) = (logs / "version_1" / "checkpoints").iterdir()
    capsys.readouterr()
    words = ["test", "--ckpt_path", str(saved), "--trainer.logger", "false", *QUIET]
    assert main(["fit", "module.py:Net:Data", *words]) == 0
    assert "test_loss" in capsys.readouterr().out


def test_the_examples_of_the_help(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in (fit.__doc__ or "").splitlines() if line.startswith("  gluongraph fit")]
    assert len(lines) == 6
    for line in lines:
        command, _, file = line.split("#")[0].partition(">")
        capsys.readouterr()
        try:
            code = main(shlex.split(command)[1:])
        except SystemExit as ended:
            code = ended.code
        said = capsys.readouterr()
        assert code == 0, f"{line}\n{said.err}"
        if file:
            pathlib.Path(file.strip()).write_text(said.out)


def test_the_options_are_shown(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, wanted in (
        (["fit", "--help"], "module.py:Net:Data"),
        (["fit", "module.py", "--help"], "the learning rate. (type: float, default: 0.01)"),
        (["fit", "module.py", "predict", "--help"], "--return_predictions"),
        (["fit", "two.py:make:Some", "--print_config"], "size: 2"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0 and wanted in capsys.readouterr().out, words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.py"], "there is no file nothing.py"),
        (["data.npz"], "wanted is module.py, module.py:Module or module.py:Module:DataModule"),
        (["two.py"], "defines 2 LightningModules; say which one: two.py:First or two.py:Second"),
        (["two.py:First"], "defines 2 LightningDataModules; say which one: two.py:First:Some or two.py:First:Others"),
        (["two.py:Third"], "two.py has no Third; its classes: First, Second, Some, Others"),
        (["two.py:anything"], "two.py:anything is a function that does not say what it makes"),
        (["two.py:First:Some:Others"], "wanted is module.py"),
        (["module.py", "--model.lrr", "1"], "unrecognized arguments: --model.lrr 1; gluongraph fit module.py --help"),
        (["module.py", "--model.lr", "fast"], "Parser key \"model.lr\": Expected a <class 'float'>"),
        (["module.py", "--config", "none.yaml"], "none.yaml"),
    ],
)
def test_what_is_refused(refused: Callable[..., str], words: list[str], message: str) -> None:
    assert message in refused(*words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 3\n", "defines no LightningModule (a class derived from gluongraph.lightning.LightningModule)"),
        ("from gluongraph.lightning import LightningModule\n", "defines no LightningModule"),
        ("def f(:\n", "file.py:1 is no Python"),
    ],
)
def test_files_without_a_module(folder: pathlib.Path, refused: Callable[..., str], text: str, message: str) -> None:
    (folder / "file.py").write_text(text)
    assert message in refused("file.py")


def test_a_module_of_lightnings_own(folder: pathlib.Path, refused: Callable[..., str]) -> None:
    """A script whose import was not changed."""
    (folder / "lightning_twin.py").write_text("class LightningModule:\n    pass\n")
    (folder / "file.py").write_text("import lightning_twin as L\n\n\nclass Net(L.LightningModule):\n    pass\n")
    assert "Net is Lightning's own: import gluongraph.lightning as L" in refused("file.py")


def test_an_error_of_the_file(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "file.py").write_text("\nraise KeyError('wrong')\n")
    assert main(["fit", "file.py"]) == 1
    assert "file.py:2: KeyError" in capsys.readouterr().err


def test_an_error_of_the_training(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "module.py", "--trainer.max_epochs", "-5", *QUIET]) == 1
    assert "gluongraph fit: " in capsys.readouterr().err


def test_without_jsonargparse(folder: pathlib.Path) -> None:
    program = """
import sys
sys.modules["jsonargparse"] = None
from gluongraph.cli import fit, main
raise SystemExit(main(["fit", "module.py"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2
    assert "jsonargparse is not installed: pip install 'gluongraph[lightning]'" in done.stderr
