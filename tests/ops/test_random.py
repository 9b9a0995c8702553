"""Philox: the published vectors, and what the numbers look like."""

import numpy as np
import pytest

from gluongraph import ops
from gluongraph.errors import ShapeError
from gluongraph.ir import interpreter
from gluongraph.ir.graph import OPS, TensorType
from gluongraph.ops import philox_kernel as drawn_words
from gluongraph.ops.random import _split, philox

# From the known-answer tests of Random123, philox4x32-10: counter, key, result.
VECTORS = (
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
)


def words(text):
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_known_answers(counter, key, expected):
    mask = 0xFFFFFFFF
    found = philox(
        words(counter),
        words(key),
        multiply=lambda m, x: (m * x >> 32, m * x & mask),
        add=lambda x, c: (x + c) & mask,
        xor=lambda x, y: x ^ y,
    )
    assert found == words(expected)


def test_key_is_the_seed_and_the_counter_is_position_offset_and_draw():
    seed, offset = words("a4093822 299f31d0"), 7
    state = np.array([*seed, offset, 1], np.uint32)
    bits = OPS["random_bits"].numpy(state, shape=(2, 3), draw=5)
    mask = 0xFFFFFFFF
    for position in range(6):
        expected = philox(
            (position, 0, offset + 5, 1),
            seed,
            multiply=lambda m, x: (m * x >> 32, m * x & mask),
            add=lambda x, c: (x + c) & mask,
            xor=lambda x, y: x ^ y,
        )
        assert bits.reshape(-1)[position] == expected[0]
    carried = np.array([*seed, 0xFFFFFFFF, 1], np.uint32)  # offset + draw carries into the high word
    np.testing.assert_array_equal(
        OPS["random_bits"].numpy(carried, shape=(4,), draw=1),
        OPS["random_bits"].numpy(np.array([*seed, 0, 2], np.uint32), shape=(4,), draw=0),
    )


def test_long_arrays_are_their_parts():
    state = np.array([1, 2, 3, 4], np.uint32)
    whole = OPS["uniform"].numpy(state, shape=(40000,), draw=0, dtype="f32")
    np.testing.assert_array_equal(whole[:100], OPS["uniform"].numpy(state, shape=(100,), draw=0, dtype="f32"))
    assert len(np.unique(whole)) > 39000


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_moments(dtype):
    state = np.array([12, 34, 0, 0], np.uint32)
    u = OPS["uniform"].numpy(state, shape=(30000,), draw=0, dtype=dtype).astype(np.float64)
    assert u.min() >= 0 and u.max() < 1
    assert u.mean() == pytest.approx(0.5, abs=0.01) and u.var() == pytest.approx(1 / 12, abs=0.005)
    n = OPS["normal"].numpy(state, shape=(30000,), draw=1, dtype=dtype).astype(np.float64)
    assert n.mean() == pytest.approx(0, abs=0.03) and n.var() == pytest.approx(1, abs=0.03)
    b = OPS["bernoulli"].numpy(state, p=0.3, shape=(30000,), draw=2, dtype=dtype).astype(np.float64)
    assert set(np.unique(b)) == {0, 1} and b.mean() == pytest.approx(0.3, abs=0.01)


def test_normal_numbers_take_all_words_of_their_counters():
    """In a run of 64: the two of the first pair of each of 16 counters, then those of the second pair."""
    state = np.array([12, 34, 5, 0], np.uint32)
    drawn = OPS["normal"].numpy(state, shape=(2, 70), draw=7, dtype="f64").reshape(-1)
    for position in (0, 15, 16, 37, 63, 64, 100, 139):
        counter, word = position // 64 * 16 + position % 16, position % 64 // 16
        words = philox(
            (counter, 0, 5 + 7, 0),
            (12, 34),
            multiply=lambda m, x: (m * x >> 32, m * x & 0xFFFFFFFF),
            add=lambda x, c: (x + c) & 0xFFFFFFFF,
            xor=lambda x, y: x ^ y,
        )
        first, second = words[word // 2 * 2 :][:2]
        radius, turn = np.sqrt(-2 * np.log(((first >> 8) + 1) / 2**24)), 2 * np.pi * second / 2**32
        assert drawn[position] == pytest.approx(radius * (np.sin(turn) if word % 2 else np.cos(turn)), abs=1e-5)


def test_normal_numbers_have_the_normal_distribution():
    """Kolmogorov and Smirnov's distance, beyond which one in a thousand would lie; and each pair is independent."""
    state, size = np.array([99, 1, 0, 0], np.uint32), 1 << 16
    drawn = OPS["normal"].numpy(state, shape=(size,), draw=0, dtype="f32").astype(np.float64)
    below = (1 + OPS["erf"].numpy(np.sort(drawn) / np.sqrt(2))) / 2
    assert np.abs(below - (np.arange(size) + 0.5) / size).max() < 1.95 / np.sqrt(size)
    first, second = np.moveaxis(drawn.reshape(-1, 2, 2, 16), 2, 0).reshape(2, -1)
    for a, b in ((first, second), (first**2, second**2), (np.abs(first), second)):
        assert abs(np.corrcoef(a, b)[0, 1]) < 3.3 / np.sqrt(first.size)


def test_words_are_split_high_and_low():
    high, low = _split(np.array([0x0123456789ABCDEF], np.uint64))
    assert (high[0], low[0]) == (0x01234567, 0x89ABCDEF)


def test_dropout_uses_one_mask_forwards_and_backwards():
    from gluongraph.ops.autodiff import gradients

    x, state = ops.input("x", TensorType((30, 40))), ops.input("state", TensorType((4,), "u32"))
    y = ops.dropout(x, state, p=0.25, draw=3)
    (g,) = gradients([y], [ops.ones(y.ty)], [x])
    env = {x: np.full((30, 40), 2.0, np.float32), state: np.array([5, 6, 7, 8], np.uint32)}
    value, slope = interpreter.evaluate([y, g], env)
    np.testing.assert_array_equal(value, 2 * slope)
    assert set(np.unique(slope)) == {0, np.float32(1 / 0.75)}
    assert (slope == 0).mean() == pytest.approx(0.25, abs=0.05)
    assert ops.dropout(x, state, p=0) is x
    with pytest.raises(ShapeError, match="below 1"):
        ops.dropout(x, state, p=1.0)


@pytest.mark.parametrize("size", [drawn_words.BLOCK - 1, drawn_words.BLOCK, 3 * drawn_words.BLOCK + 5])
def test_large_draws_by_the_kernel_have_the_same_bits(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    state = np.array([1, 2, 2**32 - 1, 4], np.uint32)
    draws = [
        ("random_bits", {}),
        ("uniform", {"dtype": "f16"}),
        ("normal", {"dtype": "f32"}),
        ("bernoulli", {"p": 0.3, "dtype": "f32"}),
    ]
    for name, how in draws:
        drawn = []
        for few in (2**40, 0):
            monkeypatch.setattr(drawn_words, "PATIENCE", few)
            monkeypatch.setattr(drawn_words, "LARGE", few)
            drawn.append(OPS[name].numpy(state, shape=(size,), draw=5, **how))
        assert drawn[0].dtype == drawn[1].dtype and (drawn[0] == drawn[1]).all(), name


def test_the_circle_of_large_draws_is_that_of_numpy() -> None:
    turns = np.linspace(0, 2**32 - 1, drawn_words.BLOCK).astype(np.uint32)
    angle = turns * drawn_words.TURN
    for found, expected in zip(
        drawn_words.circle(turns, drawn_words.LARGE), (np.cos(angle), np.sin(angle)), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15)
