"""The configuration of a run, in a file."""

from __future__ import annotations

import pathlib
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("jsonargparse")

from gluongraph.lightning.argument_parser import LightningArgumentParser
from gluongraph.lightning.save_config import SaveConfigCallback


@pytest.fixture
def parser() -> LightningArgumentParser:
    made = LightningArgumentParser()
    made.add_argument("--size", type=int, default=3)
    return made


def trainer(folder: pathlib.Path | None, rank: int = 0) -> Any:
    log_dir = None if folder is None else str(folder)
    return SimpleNamespace(log_dir=log_dir, is_global_zero=rank == 0, broadcast=lambda text: text, loggers=[])


def test_it_is_written_once(parser: LightningArgumentParser, tmp_path: pathlib.Path) -> None:
    told: list[str] = []

    class Telling(SaveConfigCallback):
        def save_config(self, trainer: Any, pl_module: Any, stage: str) -> None:
            told.append(stage)

    callback = Telling(parser, parser.parse_args(["--size", "5"]))
    for stage in ("fit", "validate"):
        callback.setup(trainer(tmp_path / "logs"), None, stage)
    assert (tmp_path / "logs" / "config.yaml").read_text().strip() == "size: 5" and told == ["fit"]


def test_it_overwrites_nothing(parser: LightningArgumentParser, tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.yaml").write_text("mine")
    with pytest.raises(RuntimeError, match=r"config.yaml is there already(.|\n)*overwrite"):
        SaveConfigCallback(parser, parser.parse_args([])).setup(trainer(tmp_path), None, "fit")
    assert (tmp_path / "config.yaml").read_text() == "mine"
    SaveConfigCallback(parser, parser.parse_args([]), overwrite=True).setup(trainer(tmp_path), None, "fit")
    assert (tmp_path / "config.yaml").read_text().strip() == "size: 3"


@pytest.mark.parametrize(("folder", "rank", "how"), [(False, 0, {}), (True, 1, {}), (True, 0, {"beside_logs": True})])
def test_where_nothing_is_written(
    parser: LightningArgumentParser, tmp_path: pathlib.Path, folder: bool, rank: int, how: dict[str, bool]
) -> None:
    callback = SaveConfigCallback(parser, parser.parse_args([]), **how)
    callback.setup(trainer(tmp_path if folder else None, rank), None, "fit")
    assert not list(tmp_path.iterdir())


def test_one_that_would_save_nothing_is_refused(parser: LightningArgumentParser) -> None:
    with pytest.raises(ValueError, match="would save nothing"):
        SaveConfigCallback(parser, parser.parse_args([]), save_to_log_dir=False)
