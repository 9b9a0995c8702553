"""Gradient compression of stores: MXNet's bits, what arrives of pushes on one and on several workers, errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from rank_checks import Array, Check, assert_clean, assert_passed, run_checks
from ranks import needs_mpi

from gluongraph import cpu, gluon, kvstore, nd, ops
from gluongraph.eager.function import leaf
from gluongraph.host import services
from gluongraph.ir.graph import Graph, TensorType
from gluongraph.kvstore.compression import Compression, compression_of
from gluongraph.kvstore.distributed import DistributedStore
from gluongraph.runtime.communicator.base import Disagreement
from gluongraph.runtime.communicator.environment import world

THRESHOLD = 0.3
LOW: dict[str, Any] = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
KINDS = ("2bit", "1bit", "sign", "fp16", "bf16")
KEEPING = ("2bit", "1bit")


def gradients(steps: int, workers: int, shape: Sequence[int] = (5, 7)) -> Array:
    """What each worker has at each step: the same on all ranks."""
    return np.random.default_rng(7).normal(size=(steps, workers, *shape), scale=0.6).astype(np.float32)


def sent(values: Array, kind: str) -> Array:
    """What arrives of values."""
    limit = np.float32(THRESHOLD)
    if kind == "2bit":
        return np.where(values >= limit, limit, np.where(values <= -limit, -limit, np.float32(0)))
    if kind in LOW:
        return values.astype(LOW[kind]).astype(np.float32)
    return np.where(values > (limit if kind == "1bit" else 0), np.float32(1), np.float32(-1))


def simulated(grads: Array, kind: str) -> tuple[list[Array], Array]:
    """The sums of what arrives at each step of grads[step, sender], and the residuals in the end, by sender."""
    residuals, sums = np.zeros_like(grads[0]), []
    for g in grads:
        values = residuals + g if kind in KEEPING else g
        arrived = sent(values, kind)
        residuals = values - arrived if kind in KEEPING else residuals
        total = arrived.sum(0, dtype=np.float32)
        sums.append(np.sign(total) if kind == "sign" else sent(total, kind) if kind in LOW else total)
    return sums, residuals


def parameters(kind: str) -> dict[str, Any]:
    return {"type": kind, "threshold": THRESHOLD}


# -- the bits


def mxnet_bytes(x: Array, bits: int, threshold: float) -> Array:
    """As MXNet's quantize_1bit and quantize_2bit write them: byte by byte, the first value in the highest bits."""
    per, limit = 8 // bits, np.float32(threshold)
    found = np.zeros(-(-x.size // (32 // bits)) * 4, np.uint8)
    for i, value in enumerate(x):
        two = 0b11 if value >= limit else 0b10 if value <= -limit else 0b00
        code = two if bits == 2 else int(value > limit)
        found[i // per] |= code << (8 - bits * (i % per + 1))
    return found


def compiled(build: Callable[..., Any], x: Array) -> Array:
    """The value of a builder by compiled code."""
    given = leaf("x", TensorType(x.shape, {"f": "f32", "u": "u32"}[x.dtype.kind]))
    made = services.get("lower")(Graph({"x": given}, {"y": build(given)}), {"x": "input"})
    (value,) = made.executor({})([x])
    return np.asarray(value)


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("size", [1, 15, 16, 37, 64, 5000])
def test_the_bits_are_those_of_mxnet(size: int, bits: int) -> None:
    x = np.random.default_rng(size).normal(size=size, scale=0.5).astype(np.float32)
    x[0], x[-1] = THRESHOLD, -THRESHOLD
    if size > 2:
        x[1], x[2] = np.nan, np.inf
    expected = mxnet_bytes(x, bits, THRESHOLD)
    for words in (
        compiled(lambda n: ops.pack_codes(n, bits=bits, threshold=THRESHOLD), x),
        ops.packing.PACK_CODES.numpy(x, bits=bits, threshold=THRESHOLD),
    ):
        assert words.dtype == np.uint32
        np.testing.assert_array_equal(words.view(np.uint8), expected)


@pytest.mark.parametrize("shape", [(100,), (3, 5, 7), (6, 32), ()])
@pytest.mark.parametrize("bits", [1, 2])
def test_codes_are_unpacked_to_what_was_sent(shape: tuple[int, ...], bits: int) -> None:
    """The sum over 40 ranks, which no single kernel unpacks; codes begin at the third word of each."""
    x = np.random.default_rng(1).normal(size=(40, *shape), scale=0.5).astype(np.float32)
    words = [mxnet_bytes(row.reshape(-1), bits, THRESHOLD).view(np.uint32) for row in x]
    rows = np.stack([np.concatenate([np.full(2, 0xDEADBEEF, np.uint32), w]) for w in words])
    found = compiled(lambda n: ops.unpack_codes(n, bits=bits, shape=shape, unit=1.0, first=2), rows)
    expected = np.rint(sent(x, "1bit" if bits == 1 else "2bit") / (1 if bits == 1 else THRESHOLD)).sum(0)
    np.testing.assert_array_equal(found.reshape(shape), expected)


# -- pushes on one worker


@pytest.mark.parametrize("kind", KINDS)
def test_devices_send_what_distant_ones_would_see(kind: str) -> None:
    grads = gradients(12, 3)
    store, out = kvstore.create("device"), nd.zeros((5, 7))
    store.init("w", out)
    store.set_gradient_compression(parameters(kind))
    sums, residuals = simulated(grads, kind)
    for each, expected in zip(grads, sums, strict=True):
        store.pushpull("w", [nd.array(g, ctx=cpu(i)) for i, g in enumerate(each)], out=out)
        np.testing.assert_array_equal(out.asnumpy(), expected)
    kept = [r.asnumpy() for r in store.residuals("w", [out] * 3)]
    assert len(kept) == (3 if kind in KEEPING else 0)
    if kept:
        np.testing.assert_array_equal(kept, residuals)
        np.testing.assert_allclose(np.sum(sums, 0) + np.sum(kept, 0), grads.sum((0, 1)), atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_sums_its_devices_and_sends_that(kind: str) -> None:
    grads = gradients(12, 2)
    store, out = kvstore.create("dist_sync"), nd.zeros((5, 7))
    store.init("w", out)
    store.set_gradient_compression(parameters(kind))
    sums, residuals = simulated(grads.sum(1, keepdims=True), kind)
    for each, expected in zip(grads, sums, strict=True):
        store.pushpull("w", [nd.array(g, ctx=cpu(i)) for i, g in enumerate(each)], out=out)
        np.testing.assert_array_equal(out.asnumpy(), expected)
    kept = [r.asnumpy() for r in store.residuals("w", [out] * 2)]
    np.testing.assert_array_equal(kept, residuals if kind in KEEPING else [])


# -- what is asked for


def test_parameters() -> None:
    assert compression_of({"type": "2bit"}) == Compression("2bit", 0.5)
    assert compression_of({"type": "1bit", "threshold": -1, "more": 3}) == Compression("1bit", -1.0)
    assert compression_of({"type": "sign", "threshold": 4}) == compression_of({"type": "sign"})
    assert compression_of({"type": "bf16"}, of_workers=True).of_workers


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "the types are '2bit', '1bit', 'sign', 'fp16', 'bf16'"),
        ({"type": "none"}, "by {'type': 'none'}"),
        ("2bit", "by '2bit'"),
        ({"type": "2bit", "threshold": 0}, "threshold 0.0: it must be above 0"),
        ({"type": "2bit", "threshold": -1}, "must be above 0"),
        ({"type": "1bit", "threshold": float("inf")}, "threshold inf: it must be a number"),
    ],
)
def test_wrong_parameters(given: Any, message: str) -> None:
    for name in ("device", "dist_sync"):
        store = kvstore.create(name)
        with pytest.raises(RuntimeError, match=message):
            store.set_gradient_compression(given)
        assert store.compression is None


@pytest.mark.parametrize("name", ["device", "dist_sync"])
def test_codes_are_of_float32_alone(name: str) -> None:
    value = nd.ones((3,), dtype="float64") / 3
    for kind in KINDS:
        store = kvstore.create(name)
        store.init("w", nd.zeros((3,), dtype="float64"))
        store.set_gradient_compression(parameters(kind))
        if kind not in LOW:
            with pytest.raises(RuntimeError, match=rf"(?s)'{kind}' of f64\[3\].*float32 alone"):
                store.push("w", value)
            continue
        store.push("w", value)
        out = nd.zeros((3,), dtype="float64")
        store.pull("w", out)
        np.testing.assert_array_equal(out.asnumpy(), value.asnumpy().astype(LOW[kind]).astype(np.float64))


# -- on several workers


def pushed(kind: str) -> None:
    """Every worker gets the same sum, and keeps its own residual."""
    c = world()
    grads = gradients(12, c.size)
    sums, residuals = simulated(grads, kind)
    store, out = kvstore.create("dist_sync"), nd.zeros((5, 7))
    assert isinstance(store, DistributedStore) and store.num_workers == c.size > 1
    store.init("w", out)
    store.set_gradient_compression(parameters(kind))
    found = []
    for each in grads:
        store.pushpull("w", nd.array(each[c.rank]), out=out)
        found.append(out.asnumpy())
    tolerance = 1e-6 if kind in KEEPING else 0  # the values of codes are counted, not added
    np.testing.assert_allclose(found, sums, atol=tolerance, rtol=0)
    kept = [r.asnumpy() for r in store.residuals("w", [out])]
    assert len(kept) == (kind in KEEPING)
    if kept:
        np.testing.assert_array_equal(kept[0], residuals[c.rank])
        total = kept[0].copy()
        c.allreduce(total)
        np.testing.assert_allclose(np.sum(found, 0, np.float64) + total, grads.sum((0, 1), np.float64), atol=1e-5)


def check_2bit() -> None:
    pushed("2bit")


def check_1bit() -> None:
    pushed("1bit")


def check_sign() -> None:
    pushed("sign")


def check_fp16() -> None:
    pushed("fp16")


def check_bf16() -> None:
    pushed("bf16")


def check_sums_are_exact() -> None:
    """Gradients in multiples of 1/16: what was sent and what is kept back is all of it, to the bit."""
    c = world()
    grads = np.random.default_rng(3).integers(-20, 20, (30, c.size, 100)).astype(np.float32) / 16
    store, sent_sum, out = kvstore.create("dist_sync"), np.zeros(100, np.float32), nd.zeros((100,))
    store.init(0, out)
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    for each in grads:
        store.pushpull(0, nd.array(each[c.rank]), out=out)
        sent_sum += out.asnumpy()
    kept = store.residuals(0, [out])[0].asnumpy()
    c.allreduce(kept)
    np.testing.assert_array_equal(sent_sum + kept, grads.sum((0, 1)))
    assert np.abs(kept).max() > 0


def check_an_optimizer_on_the_store() -> None:
    """Votes are gradients: w = 1 - 0.1 sign(sum of signs). One worker's signs of the first element differ."""
    c = world()
    store, out = kvstore.create("dist_sync"), nd.zeros((2,))
    store.init("w", nd.ones((2,)))
    store.set_optimizer(gluon.Trainer([_weight()], "sgd", {"learning_rate": 0.1}).optimizer)
    store.set_gradient_compression({"type": "sign"})
    store.push("w", nd.array([5.0, -3.0] if c.rank != 1 else [-1.0, -7.0]))
    store.pull("w", out)
    first = 1.0 if c.size == 2 else 0.9  # one against one is no vote
    np.testing.assert_allclose(out.asnumpy(), [first, 1.1], rtol=1e-6)


def _weight() -> gluon.Parameter:
    weight = gluon.Parameter("w", shape=(2,), init="ones")
    weight.initialize()
    return weight


def check_workers_that_compress_otherwise() -> None:
    how = {"type": "2bit", "threshold": 0.5 if world().rank != 1 else 0.25}
    trainer = gluon.Trainer([_weight()], "sgd", kvstore="dist_sync", compression_params=how)
    with pytest.raises(
        Disagreement, match=r"compression 2bit, threshold 0.5 on rank 0, compression 2bit, threshold 0.25"
    ):
        trainer.prepare()


CHECKS: list[Check] = [
    check_2bit,
    check_1bit,
    check_sign,
    check_fp16,
    check_bf16,
    check_sums_are_exact,
    check_an_optimizer_on_the_store,
    check_workers_that_compress_otherwise,
]


def on_each_rank() -> None:
    run_checks(CHECKS)


@needs_mpi
@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_ranks(check: Check, number: int) -> None:
    assert_passed(number, on_each_rank, check)


@needs_mpi
@pytest.mark.parametrize("number", [2, 4])
def test_jobs_end(number: int) -> None:
    assert_clean(number, on_each_rank)
