"""A stranger's artefact: code that does something else when it is loaded, in a file whose digests are all right."""

from __future__ import annotations

import hashlib
import json
import pathlib
import subprocess
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import gluon
from gluongraph.artefact.file import CODE, DESCRIPTOR
from gluongraph.runtime import tensorfile

X, Y = np.ones((4, 5), np.float32), np.zeros(4, np.int32)

CONSTRUCTOR = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void run(void) { close(open("%s", O_CREAT | O_WRONLY, 0600)); }
"""


def training() -> Any:
    """A step that has not been called, whose batch is (X, Y)."""
    np.random.seed(0)
    mx.random.seed(0)
    net = gluon.nn.Dense(3, in_units=5)
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
    step(X, Y)
    return step


def library(folder: pathlib.Path, marker: pathlib.Path, compiler: str) -> bytes:
    """A shared library that makes the file `marker` when it is loaded."""
    source, made = folder / "constructor.c", folder / "constructor.so"
    source.write_text(CONSTRUCTOR % marker)
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", made], check=True)
    return made.read_bytes()


def attacked(data: bytes, code: bytes) -> bytes:
    """An artefact's bytes with other code, and digests that fit; signatures stay as they were."""
    arrays, metadata = tensorfile.parse_all(np.frombuffer(data, np.uint8), "")
    told = json.loads(arrays.pop(DESCRIPTOR).tobytes())
    for name in [name for name in arrays if name.startswith(CODE)]:
        arrays[name] = np.frombuffer(code, np.uint8)
        told["tensors"][name] = ["u8", [len(code)], hashlib.sha256(code).hexdigest()]
    return assembled(told, arrays, metadata)


def assembled(told: dict[str, Any], arrays: dict[str, Any], metadata: dict[str, str]) -> bytes:
    """The bytes of an artefact with this descriptor, whose digest is right."""
    text = json.dumps(told).encode()
    metadata = {**metadata, "sha256": hashlib.sha256(text).hexdigest()}
    pieces = tensorfile.pieces({**arrays, DESCRIPTOR: np.frombuffer(text, np.uint8)}, metadata)
    return b"".join(piece.tobytes() for piece in pieces)


def resigned(path: pathlib.Path, metadata: dict[str, str]) -> None:
    """Put other metadata into an artefact: signatures, or none."""
    arrays, found = tensorfile.parse_all(np.frombuffer(path.read_bytes(), np.uint8), "")
    kept = {key: found[key] for key in ("format", "format_version", "sha256")}
    pieces = tensorfile.pieces(arrays, {**kept, **metadata})
    path.write_bytes(b"".join(piece.tobytes() for piece in pieces))
