"""mx.random: seeds, shapes, distributions."""

from __future__ import annotations

import numpy as np
import pytest

from gluongraph import nd, random
from gluongraph.context import cpu
from gluongraph.errors import MXNetError


def test_a_seed_repeats_and_draws_differ() -> None:
    random.seed(3)
    first = [random.uniform(shape=(8,)).asnumpy(), random.normal(shape=(8,)).asnumpy()]
    again = random.uniform(shape=(8,)).asnumpy()
    random.seed(3)
    assert (random.uniform(shape=(8,)).asnumpy() == first[0]).all()
    assert (random.normal(shape=(8,)).asnumpy() == first[1]).all()
    assert (again != first[0]).any()
    random.seed(4)
    assert (random.uniform(shape=(8,)).asnumpy() != first[0]).any()


def test_state_is_saved_and_restored() -> None:
    random.seed(1 << 40)
    random.uniform(shape=(2,))
    state = random.get_state()
    assert state == (1 << 40, 1)
    a = random.uniform(shape=(4,)).asnumpy()
    random.set_state(state)
    assert (random.uniform(shape=(4,)).asnumpy() == a).all()
    assert random.take(3) == (0, 256, 2, 0) and random.take() == (0, 256, 5, 0)


def test_each_device_has_its_own_draws() -> None:
    random.seed(1)
    random.uniform(shape=(2,), ctx=cpu(1))
    assert random.get_state(cpu(0))[1] == 0 and random.get_state(cpu(1))[1] == 1
    random.seed(5, ctx=cpu(1))
    assert random.get_state(cpu(1)) == (5, 0) and random.get_state(cpu(0))[0] == 1


def test_distributions() -> None:
    random.seed(0)
    n = 20000
    u = random.uniform(-1, 3, shape=(n,)).asnumpy()
    assert u.min() >= -1 and u.max() < 3 and abs(u.mean() - 1) < 0.05
    z = random.normal(2, 3, shape=(n,)).asnumpy()
    assert abs(z.mean() - 2) < 0.1 and abs(z.std() - 3) < 0.1
    i = random.randint(-2, 3, shape=(n,))
    assert i.dtype is np.int32 and set(np.unique(i.asnumpy())) == {-2, -1, 0, 1, 2}
    assert abs(np.bincount(i.asnumpy() + 2) / n - 0.2).max() < 0.02
    assert abs(random.bernoulli(0.3, shape=(n,)).asnumpy().mean() - 0.3) < 0.02
    assert abs(random.exponential(2.0, shape=(n,)).asnumpy().mean() - 2) < 0.1


def test_arguments() -> None:
    assert random.uniform().shape == (1,) and random.uniform(shape=3).shape == (3,)
    assert random.normal(shape=(2, 2), dtype="float64").dtype is np.float64
    out = nd.zeros((5,))
    assert random.normal(out=out) is out and out.asnumpy().any()
    low = nd.array([0, 100])
    drawn = random.uniform(low, low + 1).asnumpy()
    assert drawn.shape == (2,) and 0 <= drawn[0] < 1 and 100 <= drawn[1] <= 101
    assert nd.random.uniform is random.uniform
    with pytest.raises(MXNetError, match="randint"):
        random.randint(3, 3)


def test_shuffle() -> None:
    rows = np.arange(20, dtype=np.float32).reshape(10, 2)
    mixed = random.shuffle(nd.array(rows)).asnumpy()
    assert (mixed != rows).any() and sorted(mixed.tolist()) == rows.tolist()


@pytest.mark.parametrize("offset", [0, 2**32 - 3, 2**64 - 3])
def test_states_of_several_calls_are_those_of_one_after_the_other(offset: int) -> None:
    draws = {"rng": (cpu(), 2), "rng@cpu(1)": (cpu(1), 3)}
    for ctx, _ in draws.values():
        random.set_state((7, offset), ctx)
    expected = [random.take_all(draws) for _ in range(4)]
    after = random.all_states()
    for ctx, _ in draws.values():
        random.set_state((7, offset), ctx)
    found = random.take_all_in_turn(draws, 4)
    assert {name: found[name].tolist() for name in draws} == {n: [list(e[n]) for e in expected] for n in draws}
    assert random.all_states() == after
