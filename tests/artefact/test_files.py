"""Files that are no artefacts, damaged, or for other machines: told so, and nothing of them is executed."""

from __future__ import annotations

import json
import pathlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from exporting import batch, run, state, training
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gluongraph as mx
from gluongraph.artefact import code, compatibility, file, signing
from gluongraph.errors import FormatError
from gluongraph.formulas import Tape
from gluongraph.runtime import tensorfile

HEADER = 8


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """One artefact for all tests, which leave it as it is."""
    path = tmp_path_factory.mktemp("artefact") / "step.gga"
    np.random.seed(0)
    mx.random.seed(0)
    step = training()
    run(step, range(2))
    step.export(path, modes=["step"])
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before


@pytest.fixture(autouse=True)
def nothing_is_loaded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where code is loaded, in tests that are not marked as free to do so."""

    def loaded(*args: Any) -> Any:
        raise AssertionError("code has been loaded")

    if "may_load" not in request.fixturenames:
        monkeypatch.setattr(code, "module_of", loaded)


@pytest.fixture
def may_load() -> None:
    """For tests that load code."""


def _written(path: pathlib.Path, data: bytes) -> pathlib.Path:
    path.write_bytes(data)
    return path


def test_every_tensor_is_held_against_its_digest(artefact: pathlib.Path, tmp_path: pathlib.Path) -> None:
    data = artefact.read_bytes()
    start = HEADER + int.from_bytes(data[:HEADER], "little")
    header = json.loads(data[HEADER:start])
    del header["__metadata__"]
    assert {name.split("/")[0] for name in header} >= {"artefact.json", "params", "optim", "code", "graph"}
    for name, row in header.items():
        begin, end = row["data_offsets"]
        if begin == end:
            continue
        for at in {begin, (begin + end) // 2, end - 1}:
            changed = bytearray(data)
            changed[start + at] ^= 1
            with pytest.raises(FormatError, match=f"is damaged: {name.replace('.', '[.]')} is not what was written"):
                mx.load(_written(tmp_path / "step.gga", bytes(changed)))


def test_files_that_end_early_or_late(artefact: pathlib.Path, tmp_path: pathlib.Path) -> None:
    data = artefact.read_bytes()
    start = HEADER + int.from_bytes(data[:HEADER], "little")
    for end in (0, 1, HEADER - 1, HEADER, HEADER + 1, start - 1, start, start + 1, len(data) // 2, len(data) - 1):
        with pytest.raises(FormatError, match="is not a safetensors file"):
            mx.load(_written(tmp_path / "step.gga", data[:end]))
    with pytest.raises(FormatError, match="is not a safetensors file"):
        mx.load(_written(tmp_path / "step.gga", data + b"\0"))


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), header=st.booleans())
def test_one_changed_byte_is_noticed_or_means_nothing(
    artefact: pathlib.Path, tmp_path: pathlib.Path, at: float, byte: int, header: bool
) -> None:
    data = bytearray(artefact.read_bytes())
    start = HEADER + int.from_bytes(data[:HEADER], "little")
    place = int(at * (start if header else len(data)))
    before, data[place] = data[place], byte
    path = _written(tmp_path / "step.gga", bytes(data))
    try:
        found = file.read(path)
    except FormatError:
        return
    whole = file.read(artefact)
    assert found.told == whole.told
    if found.metadata != whole.metadata:  # the tag of who exported it: what it says is whole, and nobody vouches for it
        assert not signing.judge(found, "keys").trusted
    else:
        assert before == byte or (before in b" \t\n\r" and byte in b" \t\n\r")


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), length=st.integers(0, 400))
def test_bytes_that_are_anything(tmp_path: pathlib.Path, data: bytes, length: int) -> None:
    for content in (data, length.to_bytes(8, "little") + data):
        with pytest.raises(FormatError):
            mx.load(_written(tmp_path / "step.gga", content))


def test_other_files(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        mx.load(tmp_path / "none.gga")
    with pytest.raises(FormatError, match="is a folder"):
        mx.load(tmp_path)
    pieces = tensorfile.pieces({"a": np.zeros(3, np.float32)})
    with pytest.raises(FormatError, match="is a safetensors file, but no artefact"):
        mx.load(_written(tmp_path / "weights", b"".join(piece.tobytes() for piece in pieces)))


# -- whole files that say something else


def _edited(artefact: pathlib.Path, to: pathlib.Path, edit: Callable[[dict[str, Any]], None]) -> pathlib.Path:
    """The artefact with another descriptor, digests and signature right."""
    found = file.read(artefact)
    told = json.loads(json.dumps(found.told))
    edit(told)
    rest = {k: v for k, v in told.items() if k not in file.WRITTEN}
    file.write(to, rest, found.arrays, signing.signatures)
    return to


def _wrong(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def edit(told: dict[str, Any]) -> None:
        *path, last = key.split(".")
        part: Any = told
        for each in path:
            part = part[int(each) if isinstance(part, list) else each]
        if value is None:
            del part[last]
        else:
            part[last] = value

    return edit


@pytest.mark.parametrize(
    "key",
    ["parameters", "optimizer", "about", "entries", "states", "writer", "target.needs", "optimizer.name", "options"],
)
def test_descriptors_that_lack_something(artefact: pathlib.Path, tmp_path: pathlib.Path, key: str) -> None:
    with pytest.raises(FormatError, match=r"step[.]gga is no artefact"):
        mx.load(_edited(artefact, tmp_path / "step.gga", _wrong(key, None)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optimizer.learning_rate", {"rows": [["pow", 0, 1]], "values": {"learning_rate": 0}}),
        ("optimizer.learning_rate", {"rows": [["system", "rm"]], "values": {}}),
        ("parameters", [{"key": "a"}]),
        ("entries", [1]),
        ("about", {"parts": {"more": 1}, "extra": {}}),
    ],
)
def test_descriptors_that_say_nonsense(artefact: pathlib.Path, tmp_path: pathlib.Path, key: str, value: Any) -> None:
    def edit(told: dict[str, Any]) -> None:
        told["optimizer"]["schedule"] = {"class": "S", "by": "formula"}
        told["about"]["parts"]["progress"]["scheduler"] = {"class": "S", "settings": {}}
        _wrong(key, value)(told)

    with pytest.raises(FormatError):
        mx.load(_edited(artefact, tmp_path / "step.gga", edit))


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=8), value=_JSON)
def test_descriptors_that_say_anything(
    artefact: pathlib.Path, tmp_path: pathlib.Path, turns: list[float], value: Any
) -> None:
    """Whatever stands anywhere in it, there is one clear error, or a step."""

    def edit(told: dict[str, Any]) -> None:
        part: Any = told
        for number, turn in enumerate(turns, 1):
            keys = list(part) if isinstance(part, dict) else range(len(part))
            key = keys[int(turn * len(keys))]
            if number == len(turns) or not isinstance(part[key], (dict, list)) or not part[key]:
                part[key] = value
                return
            part = part[key]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mx.load(_edited(artefact, tmp_path / "step.gga", edit))
    except mx.MXNetError:
        pass


def test_a_newer_format(artefact: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "version_of", lambda told: 4)
    found = {**file.Artefact("", {}, {}).told}
    file.write(tmp_path / "step.gga", found, {})
    monkeypatch.undo()
    with pytest.raises(FormatError, match="has format '4', and this gluongraph reads 1, 2 and 3"):
        file.read(tmp_path / "step.gga")


# -- whole files for other machines


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("writer.tvm", "0.1", "compiled with tvm 0.1"),
        ("writer.tvm-ffi", "9", "compiled with tvm-ffi 9"),
        ("target.needs", ["avx9000"], "this CPU lacks avx9000"),
        ("target.machine", "riscv64", "it is for Linux on riscv64"),
    ],
)
def test_code_for_other_machines_is_not_loaded(
    artefact: pathlib.Path, tmp_path: pathlib.Path, key: str, value: Any, why: str
) -> None:
    with pytest.warns(UserWarning, match=f"{why}.*compiled again"):
        mx.load(_edited(artefact, tmp_path / "step.gga", _wrong(key, value)))


def test_compiled_again_it_is_the_same(artefact: pathlib.Path, tmp_path: pathlib.Path, may_load: None) -> None:
    step = mx.load(artefact)
    mine = run(step, range(4)), state(step)
    with pytest.warns(UserWarning, match="compiled again"):
        other = mx.load(_edited(artefact, tmp_path / "step.gga", _wrong("writer.tvm", "0.1")))
    assert (run(other, range(4)), state(other)) == mine
    assert step.plan.launches == other.plan.launches


def test_a_gpu_that_is_not_there() -> None:
    told = {"writer": compatibility.versions(), "target": {"kind": "cuda", "arch": "sm_90", "needs": []}}
    assert "sm_90" in compatibility.misfit(told) or compatibility.misfit(told) == ""


# -- formulas

_NUMBERS = st.integers(-3, 3)
_ROWS = st.lists(
    st.one_of(
        st.tuples(st.just("const"), st.one_of(_NUMBERS, st.floats(), st.text(max_size=1))),
        st.tuples(st.just("var"), st.sampled_from(["a", "b", 1])),
        st.tuples(st.sampled_from(["add", "pow", "div", "mod", "floordiv", "where", "log", "no"]), _NUMBERS, _NUMBERS),
        st.tuples(st.sampled_from(["sqrt", "exp", "known", "ceil"]), _NUMBERS),
    ).map(list),
    max_size=6,
)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(rows=_ROWS, slot=_NUMBERS, a=st.floats(), b=st.floats())
def test_tapes_are_refused_or_computed(rows: list[Any], slot: int, a: float, b: float) -> None:
    try:
        tape = Tape.from_data({"rows": rows, "values": {"x": slot}})
    except FormatError:
        return
    assert Tape.from_data(json.loads(json.dumps(tape.to_data()))) == tape
    assert len(tape.slots({"a": a, "b": b})) == len(rows)  # whatever the numbers, no error


def test_a_batch_of_the_artefact_still_fits(artefact: pathlib.Path, may_load: None) -> None:
    assert mx.load(artefact)(*batch(0)).shape == (4,)
