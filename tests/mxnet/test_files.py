"""MXNet's files of arrays: read from bytes that MXNet 1.9.1 wrote, and written as it writes them."""

from __future__ import annotations

import pathlib
import resource
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import gluongraph as mx
from gluongraph import nd
from gluongraph.errors import FormatError, MXNetError
from gluongraph.gluon import nn
from gluongraph.host import params_file

# mx.nd.save of {"x": [[1, 2], [3, 4]], "arg:y": int64 [5]}, by MXNet 1.9.1
NAMED = bytes.fromhex(
    "120100000000000000000000000000000200000000000000c9fa93f9000000000200000002000000000000000200000000000000010000000000"
    "0000000000000000803f000000400000404000008040c9fa93f90000000001000000010000000000000001000000000000000600000005000000"
    "00000000020000000000000001000000000000007805000000000000006172673a79"
)
# mx.nd.save of [float16 [1, 1]]
LISTED = bytes.fromhex(
    "120100000000000000000000000000000100000000000000c9fa93f90000000001000000020000000000000001000000000000000200000000"
    "3c003c0000000000000000"
)
# mx.nd.save of {"r": row_sparse [[1, 2], [0, 0], [3, 4]], "c": csr [[1, 0], [0, 2]]}
SPARSE = bytes.fromhex(
    "120100000000000000000000000000000200000000000000c9fa93f901000000020000000200000000000000020000000000000002000000030000"
    "000000000002000000000000000100000000000000000000000600000001000000020000000000"
    "00000000803f0000004000004040000080400000000000000000020000000000"
    "0000c9fa93f9020000000100000000000000000000000200000002000000000000000200000000000000010000000000000000000000060000000100"
    "0000030000000000000006000000010000000200000000000000"
    "0000803f00000040000000000000000001000000000000000200000000000000000000000000000001000000000000000200000000000000"
    "010000000000000072010000000000000063"
)
# mx.nd.save of [3.5] without axes, under numpy's semantics
SCALAR = bytes.fromhex(
    "120100000000000000000000000000000100000000000000cafa93f90000000000000000010000000000000000000000000060400000000000000000"
)


def one_array(head: bytes) -> bytes:
    """A file with one float32 array [[1, 2]] that begins with `head`, where older versions differ."""
    return struct.pack("<QQQ", 0x112, 0, 1) + head + struct.pack("<iiiffQ", 1, 0, 0, 1, 2, 0)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (NAMED, {"x": [[1, 2], [3, 4]], "arg:y": [5]}),
        (LISTED, [[1, 1]]),
        (SPARSE, {"r": [[1, 2], [0, 0], [3, 4]], "c": [[1, 0], [0, 2]]}),
        (SCALAR, [3.5]),
        (one_array(struct.pack("<IIqq", params_file.V1, 2, 1, 2)), [[[1, 2]]]),
        (one_array(struct.pack("<III", 2, 1, 2)), [[[1, 2]]]),
    ],
    ids=["named", "listed", "sparse", "scalar", "version 1", "without version"],
)
def test_reading_what_mxnet_wrote(data: bytes, expected: Any) -> None:
    found = nd.load_frombuffer(data)
    if isinstance(found, dict):
        assert {k: a.asnumpy().tolist() for k, a in found.items()} == expected
    else:
        assert [a.asnumpy().tolist() for a in found] == expected


def test_element_types_are_kept() -> None:
    found = nd.load_frombuffer(NAMED)
    assert isinstance(found, dict) and found["x"].dtype is np.float32 and found["arg:y"].dtype is np.int64
    (half,) = nd.load_frombuffer(LISTED)
    assert half.dtype is np.float16


def test_writing_as_mxnet_writes(tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "a")
    nd.save(file, {"x": nd.array([[1, 2], [3, 4]]), "arg:y": nd.array([5], dtype="int64")})
    assert pathlib.Path(file).read_bytes() == NAMED
    nd.save(file, [nd.ones((2,), dtype="float16")])
    assert pathlib.Path(file).read_bytes() == LISTED
    nd.save(file, nd.array([1, 2]))
    (back,) = nd.load(file)
    assert back.asnumpy().tolist() == [1, 2]


def test_files_have_the_rights_of_other_new_files(tmp_path: pathlib.Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    nd.save(str(tmp_path / "a"), nd.ones((1,)))
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_that_does_not_exist(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere/a\.params"):
        nd.save(str(tmp_path / "nowhere" / "a.params"), nd.ones((1,)))


def test_where_there_is_no_room_the_file_is_named_and_stays(tmp_path: pathlib.Path) -> None:
    """A limit on the size of files stands for a disk that is full: both say so only when bytes are written."""
    file = tmp_path / "a.params"
    nd.save(str(file), nd.ones((2,)))
    before, limits = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: .*/a\.params'$"):
            nd.save(str(file), nd.ones((5000,)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == before and [f.name for f in tmp_path.iterdir()] == ["a.params"]


def test_every_element_type_comes_back(tmp_path: pathlib.Path) -> None:
    arrays = [np.arange(3).astype(t) for t in ("f4", "f8", "f2", "u1", "i4", "i1", "i8", "?", ml_dtypes.bfloat16)]
    params_file.write(str(tmp_path / "a"), arrays)
    back, names = params_file.parse((tmp_path / "a").read_bytes(), "a")
    assert names == [] and all((a == b).all() and a.dtype == b.dtype for a, b in zip(arrays, back, strict=True))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"PK\x03\x04", "does not begin with"),
        (NAMED[:70], r"ends early.*at byte"),
        (NAMED[:24] + struct.pack("<Ii", params_file.V2, 7) + bytes(40), "unknown storage type 7"),
        (one_array(struct.pack("<II", 40, 1)), "40 axes"),
        (LISTED[:52] + struct.pack("<i", 99) + LISTED[56:], "unknown element type 99"),
    ],
)
def test_bad_files(data: bytes, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        nd.load_frombuffer(data)


def test_safetensors_where_the_name_says_so(tmp_path: pathlib.Path) -> None:
    given = {"x": nd.array([[1, 2], [3, 4]]), "y": nd.array([5], dtype="int64")}
    file = tmp_path / "a.safetensors"
    nd.save(str(file), given)
    assert set(safetensors.numpy.load_file(file)) == {"x", "y"}
    back = nd.load(str(file))
    assert isinstance(back, dict)
    assert all((back[k].asnumpy() == a.asnumpy()).all() and back[k].dtype == a.dtype for k, a in given.items())
    with pytest.raises(TypeError, match=r"have names(.|\n)*give a dict"):
        nd.save(str(tmp_path / "b.safetensors"), [nd.ones((2,))])
    assert not (tmp_path / "b.safetensors").exists()


def test_bad_arguments(tmp_path: pathlib.Path) -> None:
    with pytest.raises(TypeError, match="list or dict"):
        nd.save(str(tmp_path / "a"), 3)
    with pytest.raises(TypeError, match="NDArrays"):
        nd.save(str(tmp_path / "a"), [np.zeros(3)])
    with pytest.raises(FormatError, match="uint32"):
        nd.save(str(tmp_path / "a"), nd.zeros((2,), dtype="uint32"))
    assert not list(tmp_path.iterdir()), "a file appears whole or not at all"
    with pytest.raises(FileNotFoundError):
        nd.load(str(tmp_path / "nothing"))


# -- parameters


def network() -> nn.HybridSequential:
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(3, in_units=2), nn.BatchNorm(in_channels=3))
    return net


VALUES = {
    "0.weight": np.arange(6, dtype=np.float32).reshape(3, 2),
    "0.bias": np.ones(3, np.float32),
    "1.gamma": np.full(3, 2, np.float32),
    "1.beta": np.zeros(3, np.float32),
    "1.running_mean": np.zeros(3, np.float32),
    "1.running_var": np.ones(3, np.float32),
}
FULL = dict(
    zip(VALUES, ["dense0_weight", "dense0_bias", *(f"batchnorm0_{n[2:]}" for n in list(VALUES)[2:])], strict=True)
)


@pytest.mark.parametrize("kind", ["structural", "without prefix", "exported"])
def test_load_parameters_reads_mxnets_files(tmp_path: pathlib.Path, kind: str) -> None:
    file = str(tmp_path / "net.params")
    names = {"structural": list(VALUES), "without prefix": list(FULL.values())}.get(kind)
    if names is None:  # as HybridBlock.export writes them, of a network without a prefix
        names = [("aux:" if "running" in n else "arg:") + n for n in FULL.values()]
    params_file.write(file, list(VALUES.values()), names)
    net = network()
    net.load_parameters(file)
    x = np.array([[1.0, -1.0]], np.float32)
    expected = 2 * (x @ VALUES["0.weight"].T + 1) / np.sqrt(1 + 1e-5)
    np.testing.assert_allclose(net(nd.array(x)).asnumpy(), expected, rtol=1e-5)


def test_collected_parameters_read_full_names(tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "net.params")
    params_file.write(file, list(VALUES.values()), ["net_" + n for n in FULL.values()])
    net = network()
    net.collect_params().load(file)
    assert net[0].weight.data().asnumpy().tolist() == VALUES["0.weight"].tolist()


def test_nd_load_reads_what_save_parameters_writes(tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "net.params")
    net = network()
    net.initialize()
    net.save_parameters(file)
    found = nd.load(file)
    assert isinstance(found, dict) and found.keys() == VALUES.keys()
    assert (found["0.weight"].asnumpy() == net[0].weight.data().asnumpy()).all()


def test_parameters_that_do_not_fit(tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "net.params")
    params_file.write(file, list(VALUES.values())[:2], list(VALUES)[:2])
    with pytest.raises(AssertionError, match=r"1\.gamma"):
        network().load_parameters(file)
    network().load_parameters(file, allow_missing=True)
    params_file.write(file, list(VALUES.values()), [])
    with pytest.raises(FormatError, match=r"6 arrays and 0 names"):
        network().load_parameters(file)
    pathlib.Path(file).write_text("no parameters at all")
    with pytest.raises(FormatError, match="neither a safetensors file nor"):
        network().load_parameters(file)
    assert issubclass(FormatError, MXNetError) and mx.MXNetError is MXNetError
