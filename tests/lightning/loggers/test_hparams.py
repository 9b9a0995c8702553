"""hparams.yaml: plain data in and out, and nothing that runs."""

from __future__ import annotations

import enum
import math
import pathlib
import random
import string
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gluongraph.errors import FormatError
from gluongraph.lightning.loggers import load_hparams_from_yaml, save_hparams_to_yaml
from gluongraph.lightning.loggers.hparams import dumped, loaded


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.choice(["int", "float", "text", "word", "none", "bool", *(["list", "dict"] * 2 if depth < 3 else [])])
    if kind == "int":
        return rng.choice([0, -1, 7, 10**20])
    if kind == "float":
        return rng.choice([0.0, -0.5, 1e-5, 1e300, 123456.789, math.inf, -math.inf, 1.0])
    if kind == "text":
        letters = string.printable + "éß漢\x00\x1b\u2028'\"\\:#-[]{}"
        return "".join(rng.choice(letters) for _ in range(rng.randint(0, 12)))
    if kind == "word":
        words = [
            "null",
            "true",
            "No",
            "on",
            "~",
            "1",
            "1e5",
            "-",
            "- a",
            "a: b",
            "a #b",
            " x ",
            ".nan",
            "0x1F",
            "1_0",
            "",
        ]
        return rng.choice(words)
    if kind == "list":
        return [random_value(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    if kind == "dict":
        keys = [rng.choice(["a", "b c", "1", "true", "x:y", "é", "", "- k", "#"]) for _ in range(rng.randint(0, 4))]
        return {key: random_value(rng, depth + 1) for key in keys}
    return None if kind == "none" else rng.random() < 0.5


@pytest.mark.parametrize("seed", range(200))
def test_data_comes_back(seed: int) -> None:
    rng = random.Random(seed)
    data = {f"key{i}": random_value(rng) for i in range(rng.randint(1, 6))}
    text = dumped(data)
    assert loaded(text) == data, text


@pytest.mark.parametrize("seed", range(200))
def test_yaml_reads_it_alike(seed: int) -> None:
    yaml = pytest.importorskip("yaml")
    rng = random.Random(seed)
    data = {f"key{i}": random_value(rng) for i in range(rng.randint(1, 6))}
    assert yaml.safe_load(dumped(data)) == data, dumped(data)


@pytest.mark.parametrize("seed", range(100))
def test_what_yaml_writes_is_read(seed: int) -> None:
    """Data with words and numbers, as Lightning writes them."""
    yaml = pytest.importorskip("yaml")
    rng = random.Random(seed)
    words = ["relu", "adam", "a b", "null", "1", "1e-3", "x: y", "yes", "", "-", "it's", "#1", "a,b", "[x]"]

    def value(depth: int = 0) -> Any:
        kind = rng.randint(0, 5 if depth < 3 else 3)
        if kind >= 4:
            parts = [value(depth + 1) for _ in range(rng.randint(0, 3))]
            return parts if kind == 4 else {f"k{i}": part for i, part in enumerate(parts)}
        return [
            rng.choice(words),
            rng.randint(-5, 5),
            rng.choice([0.5, 1e-5, 1e20, math.inf]),
            rng.choice([None, True]),
        ][kind]

    data = {"lr": 0.1, "net": {"layers": [64, 10], "act": "relu"}, "x": value(), "y": value()}
    text = yaml.dump(data)
    assert loaded(text) == data, text


def test_common_files_are_those_of_lightning(original: Any, tmp_path: pathlib.Path) -> None:
    data = {
        "lr": 0.001,
        "eps": 1e-8,
        "layers": [64, 10],
        "net": {"act": "relu", "bias": True, "drop": None},
        "epochs": 3,
    }
    save_hparams_to_yaml(tmp_path / "ours.yaml", data)
    original.core.saving.save_hparams_to_yaml(tmp_path / "theirs.yaml", dict(data))
    assert (tmp_path / "ours.yaml").read_bytes() == (tmp_path / "theirs.yaml").read_bytes()


class Colour(enum.Enum):
    RED = 1


@dataclass
class Size:
    width: int = 3


def test_objects_become_plain(tmp_path: pathlib.Path) -> None:
    data = {
        "type": np.ndarray,
        "function": math.sqrt,
        "colour": Colour.RED,
        "size": Size(),
        "array": np.arange(3),
        "number": np.float64(0.5),
        "tuple": (1, "a"),
        "path": pathlib.PurePosixPath("a/b"),
        "object": object(),
        5: {6: 7},
    }
    save_hparams_to_yaml(tmp_path / "h.yaml", data)
    assert load_hparams_from_yaml(tmp_path / "h.yaml") == {
        "type": "numpy.ndarray",
        "function": "math.sqrt",
        "colour": "RED",
        "size": {"width": 3},
        "array": [0, 1, 2],
        "number": 0.5,
        "tuple": [1, "a"],
        "path": "a/b",
        "object": "object",
        "5": {"6": 7},
    }


HOSTILE = (
    "x: !!python/object/apply:os.system ['touch gone']\n",
    "!!python/object/apply:os.system ['touch gone']: 1\n",
    "a: &anchor 1\nb: *anchor\n",
    "a: |\n  text\n",
    "a: >\n  text\n",
    "a: %x\n",
    "a: 'open\n",
    'a: "open\n',
    "a: [1, 2\n",
    "a: {b: 1}\n",
    "a: 1\n   b: 2\n",
    "a: 1\na: 2\n",
    "\ta: 1\n",
    "no key here\nnor here\n",
    "- 1\n- 2\n",
    "a: " + "[" * 500 + "]" * 500 + "\n",
    "".join("  " * i + f"k{i}:\n" for i in range(500)),
    "- " * 500 + "x\n",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("h.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match=r"h\.yaml: "):
        load_hparams_from_yaml("h.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["h.yaml"]


def test_bytes_that_are_no_text(tmp_path: pathlib.Path) -> None:
    (tmp_path / "h.yaml").write_bytes(b"a: \xff\xfe\n")
    with pytest.raises(FormatError):
        load_hparams_from_yaml(tmp_path / "h.yaml")


def test_comments_and_empty_lines() -> None:
    assert loaded("# all\n\nlr: 0.1 # the rate\nname: 'a # b'\n\nnet:  # below\n  # here\n  act: relu\n") == {
        "lr": 0.1,
        "name": "a # b",
        "net": {"act": "relu"},
    }
    assert loaded("") == {} and loaded("# nothing\n") == {}
