"""`nd.contrib.hawkesll`: the likelihood of a Hawkes process."""

from __future__ import annotations

from typing import Any

from gluongraph.mxops import ops as mxops
from gluongraph.mxops import shapes as mxshapes
from gluongraph.nd.control import foreach
from gluongraph.nd.function import function
from gluongraph.ndarray import NDArray, invoke

_where = function(mxops.where)


def hawkesll(
    lda: NDArray,
    alpha: NDArray,
    beta: NDArray,
    state: NDArray,
    lags: NDArray,
    marks: NDArray,
    valid_length: NDArray,
    max_time: NDArray,
) -> tuple[NDArray, NDArray]:
    """Log likelihood (N,) of K independent Hawkes processes with exponential decay, and their states (N, K) in the end.

    The intensity of process k is lda_k + alpha_k sum over its past events of beta_k exp(-beta_k (t - t_i)). lda (N, K),
    alpha and beta (K,); the state (N, K), sum of exp(-beta_k (t - t_i)), at the beginning; lags (N, T) between events,
    and which process each is of, marks (N, T), the first valid_length (N,) of them; observed until max_time (N,).
    Bacry, Mastromatteo, Muzy: Hawkes processes in finance, 2015.
    """
    count, dtype = lda.shape[1], lda.dtype
    steps = lags.transpose((1, 0))
    own = invoke(mxshapes.one_hot, marks, count, dtype=lda.type.dtype).transpose((1, 0, 2))  # (T, N, K)
    place = invoke(mxops.cumsum, steps.ones_like(), axis=0).reshape((-1, lags.shape[0], 1))
    own = own * (place <= valid_length.astype(dtype).reshape((1, -1, 1)))

    def event(inputs: Any, states: Any) -> Any:
        (lag, mine), (memory, last, now, total) = inputs, states
        now = now + lag.reshape((-1, 1))
        since = now - last
        decay = (-beta * since).exp()
        intensity = lda + alpha * beta * memory * decay
        spent = lda * since + alpha * memory * (1 - decay)
        term = _where(mine, intensity, intensity.ones_like()).log() - mine * spent
        memory = _where(mine, 1 + memory * decay, memory)
        last = _where(mine, now + last.zeros_like(), last)
        return [], [memory, last, now, total + term.sum(axis=1)]

    zeros = lda.zeros_like()
    begin = [state + zeros, zeros, zeros.slice_axis(axis=1, begin=0, end=1), zeros.sum(axis=1)]
    _, (memory, last, _, total) = foreach(event, [steps, own], begin)
    since = max_time.reshape((-1, 1)) - last
    decay = (-beta * since).exp()
    rest = lda * since + alpha * memory * (1 - decay)
    return total - rest.sum(axis=1), memory * decay
