"""Checkpoints that somebody has written to mislead: digests are right, what they are of is not."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from training import Training

from gluongraph import debug
from gluongraph.errors import FormatError
from gluongraph.host.json_text import DEEPEST
from gluongraph.runtime import checkpoint

PARAMS = "params-00000-of-00001.safetensors"


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    """What is read does not depend on the compiler."""
    with debug.override(backend="reference"):
        yield


@pytest.fixture
def place(tmp_path: pathlib.Path) -> pathlib.Path:
    """The folder of a checkpoint."""
    training = Training()
    training.go(1)
    training.save(tmp_path / "run")
    return tmp_path / "run" / "step-00000001"


def refused(place: pathlib.Path, message: str) -> None:
    """In one sentence, and nothing is changed."""
    training = Training()
    before = training.state()
    with pytest.raises(FormatError, match=message) as caught:
        training.load(place)
    assert len(str(caught.value)) < 1000
    after = training.state()
    assert {k: v for k, v in after.items() if k != "next"} == {k: v for k, v in before.items() if k != "next"}


def rewritten(place: pathlib.Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The manifest changed, with its digest."""
    told = json.loads((place / "MANIFEST.json").read_text())
    change(told)
    (place / "MANIFEST.json").write_text(json.dumps({**told, "sha256": checkpoint._digest(told)}))


def described(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


NAMES = ["../../secret", "params-x/../../../secret", "/secret", "lib/secret", "..", "", "a\0b"]


@pytest.mark.parametrize("name", NAMES)
def test_files_outside_of_the_folder(place: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"what no checkpoint may name")
    name = name.replace("/secret", f"{tmp_path}/secret") if name.startswith("/") else name
    rewritten(place, lambda told: told["files"].update({name: described(secret.read_bytes())}))
    refused(place, "MANIFEST.json names .*, which is no file in it")


@pytest.mark.parametrize("name", [PARAMS, "trainer.json", "MANIFEST.json"])
def test_links_and_pipes_in_the_place_of_files(place: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    """A link leads out of the folder as a name does; who opens a pipe waits for ever."""
    (place / name).rename(tmp_path / "elsewhere")
    (place / name).symlink_to(tmp_path / "elsewhere")
    refused(place, f"{name} is a link to another file")
    (place / name).unlink()
    os.mkfifo(place / name)
    rewritten_files = name != "MANIFEST.json"
    if rewritten_files:
        rewritten(place, lambda told: told["files"].update({name: described(b"")}))
    refused(place, f"{name} cannot be read: it is no file")


def deep(levels: int) -> Any:
    made: Any = []
    for _ in range(levels):
        made = [made]
    return made


@pytest.mark.parametrize("levels", [DEEPEST, 900, 100_000])
def test_json_that_is_nested_deeply(place: pathlib.Path, levels: int) -> None:
    text = ("[" * levels + "]" * levels).encode()
    about = b'{"extra": {}, "parts": ' + text + b"}"
    (place / "trainer.json").write_bytes(about)
    rewritten(place, lambda told: told["files"].update({"trainer.json": described(about)}))
    refused(place, "trainer.json is no JSON: it is nested too deeply")
    (place / "MANIFEST.json").write_bytes(b'{"format": ' + text + b"}")
    refused(place, "MANIFEST.json is no JSON: it is nested too deeply")


@pytest.mark.parametrize(
    "change",
    [
        *({key: None} for key in ("number", "step", "metrics", "files", "format_version")),
        {"format_version": "1"},
        {"number": "1"},
        {"files": []},
        {"files": {}},
        {"metrics": {"loss": "x"}},
        *(
            {"files": {"trainer.json": row}}
            for row in (None, {}, {"bytes": -1, "sha256": ""}, {"bytes": 1, "sha256": 1})
        ),
    ],
)
def test_manifests_of_another_structure(place: pathlib.Path, change: dict[str, Any]) -> None:
    rewritten(place, lambda told: told.update(change))
    refused(place, "step-00000001 is damaged: ")


@pytest.mark.parametrize(
    "about", [[], {}, {"parts": 1}, {"parts": {"weights": 1}, "extra": {}}, {"parts": {"progress": []}}]
)
def test_states_of_another_structure(place: pathlib.Path, about: Any) -> None:
    data = json.dumps(about).encode()
    (place / "trainer.json").write_bytes(data)
    rewritten(place, lambda told: told["files"].update({"trainer.json": described(data)}))
    refused(place, "the checkpoint is not as step.save writes it|belong together|holds|no ")


def test_groups_that_are_missing(place: pathlib.Path) -> None:
    rewritten(place, lambda told: told["files"].pop(PARAMS))
    refused(place, "the checkpoint is not as step.save writes it")


def test_what_could_not_be_read_is_not_saved(place: pathlib.Path) -> None:
    training = Training()
    before = sorted(place.parent.iterdir())
    endless: list[Any] = []
    endless.append(endless)
    for extra in (deep(DEEPEST), deep(5000), endless):
        with pytest.raises(TypeError, match="extra is nested deeper than 60 levels"):
            training.step.save(place.parent, extra={"x": extra})
    assert sorted(place.parent.iterdir()) == before
    shutil.rmtree(place)
    training.step.save(place.parent, extra={"x": deep(DEEPEST - 8)})
    assert training.step.load(place.parent) == {"x": deep(DEEPEST - 8)}
