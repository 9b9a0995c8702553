"""Losses: what `torch.nn.functional` computes in one operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import is_float
from gluongraph.ir.graph import Node
from gluongraph.mxops.ctc import negative_log_likelihood
from gluongraph.torch.aten.context import Number, OpContext, cast, constant, in_range
from gluongraph.torch.aten.elementwise import log_sigmoid_of
from gluongraph.torch.aten.table import TABLE, aten

NONE, MEAN, SUM = 0, 1, 2  # ATen's numbers of reductions


def _reduced(each: Node, reduction: int) -> Node:
    if reduction == NONE or not each.ty.rank:
        return each
    return (ops.mean if reduction == MEAN else ops.sum)(each)


# -- of one prediction for each element


def _elementwise(name: str, build: Callable[..., Node]) -> None:
    @aten(f"{name}.default")
    def loss(at: OpContext, self: Node, target: Node, reduction: int = MEAN, *args: Number) -> Node:
        return _reduced(build(ops.sub(self, cast(target, self.dtype)), *args), reduction)


def _smooth_l1(gap: Node, beta: Number = 1.0) -> Node:
    far = ops.abs(gap)
    if beta == 0:
        return far
    return ops.where(ops.less(far, beta), gap * gap * (0.5 / beta), far - 0.5 * beta)


def _huber(gap: Node, delta: Number = 1.0) -> Node:
    far = ops.abs(gap)
    return ops.where(ops.less_equal(far, delta), gap * gap * 0.5, (far - 0.5 * delta) * delta)


_elementwise("mse_loss", lambda gap: gap * gap)
_elementwise("l1_loss", ops.abs)
_elementwise("smooth_l1_loss", _smooth_l1)
_elementwise("huber_loss", _huber)


@aten("binary_cross_entropy_with_logits.default")
def bce_with_logits(
    at: OpContext,
    self: Node,
    target: Node,
    weight: Node | None = None,
    pos_weight: Node | None = None,
    reduction: int = MEAN,
) -> Node:
    """-(t log σ(x) + (1 - t) log(1 - σ(x)))"""
    t = cast(target, self.dtype)
    if pos_weight is None:
        each = (1.0 - t) * self - log_sigmoid_of(self)
    else:
        each = (1.0 - t) * self - ((pos_weight - 1.0) * t + 1.0) * log_sigmoid_of(self)
    return _reduced(each if weight is None else each * weight, reduction)


@aten("binary_cross_entropy.default")
def bce(at: OpContext, self: Node, target: Node, weight: Node | None = None, reduction: int = MEAN) -> Node:
    """-(t log x + (1 - t) log(1 - x)), of logarithms not below -100"""
    log_x, log_rest = (ops.maximum(ops.log(v), -100.0) for v in (self, 1.0 - self))
    each = (target - 1.0) * log_rest - target * log_x
    return _reduced(each if weight is None else each * weight, reduction)


@aten("kl_div.default")
def kl_div(at: OpContext, self: Node, target: Node, reduction: int = MEAN, *, log_target: bool = False) -> Node:
    """t (log t - x), of log-probabilities x"""
    if log_target:
        return _reduced(ops.exp(target) * (target - self), reduction)
    positive = ops.greater(target, 0.0)
    entropy = ops.where(positive, target * ops.log(ops.where(positive, target, 1.0)), 0.0)
    return _reduced(entropy - target * self, reduction)


@aten("poisson_nll_loss.default")
def poisson_nll(
    at: OpContext, input: Node, target: Node, log_input: bool, full: bool, eps: float, reduction: int
) -> Node:
    """exp(x) - t x, or x - t log x"""
    each = ops.exp(input) - target * input if log_input else input - target * ops.log(input + eps)
    if full:
        stirling = target * ops.log(target) - target + ops.log(target * (2 * math.pi)) * 0.5
        each = each + ops.where(ops.greater(target, 1.0), stirling, 0.0)
    return _reduced(each, reduction)


@aten("soft_margin_loss.default")
def soft_margin(at: OpContext, self: Node, target: Node, reduction: int = MEAN) -> Node:
    """log(1 + exp(-t x))"""
    return _reduced(ops.neg(log_sigmoid_of(cast(target, self.dtype) * self)), reduction)


# -- of classes


def _of_classes(
    pick: Callable[[Node, int], Node], x: Node, target: Node, weight: Node | None, reduction: int, ignore_index: int
) -> Node:
    """w[t] pick(t), of classes t along axis 1 (of one sample axis 0); ignored targets count for nothing. `pick` gives
    the loss of each target, which it gets with the axis of the classes."""
    axis = 1 if x.ty.rank > 1 else 0
    counted = ops.not_equal(target, cast(ignore_index, target.dtype))
    checked = in_range(target, x.shape[axis], "class of a loss", counts=counted)
    safe = ops.where(counted, checked, cast(0, checked.dtype))
    share = cast(counted, x.dtype)
    if weight is not None:
        share = share * ops.take(weight, safe, 0)
    each = ops.where(counted, pick(safe, axis), 0.0)
    each = each if weight is None else each * share
    if reduction == NONE:
        return each
    total = ops.sum(each) if each.ty.rank else each
    return total if reduction == SUM else total / (ops.sum(share) if share.ty.rank else share)


def _negative_log_likelihood(log_p: Node, target: Node, weight: Node | None, reduction: int, ignore_index: int) -> Node:
    """-w[t] log p[t]"""

    def pick(safe: Node, axis: int) -> Node:
        picked = ops.gather(log_p, ops.expand_dims(safe, axis) if safe.ty.rank else ops.reshape(safe, (1,)), axis)
        return ops.reshape(ops.neg(picked), target.shape)

    return _of_classes(pick, log_p, target, weight, reduction, ignore_index)


@aten("nll_loss_nd.default", "nll_loss.default", "nll_loss2d.default")
def nll_loss(
    at: OpContext,
    self: Node,
    target: Node,
    weight: Node | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
) -> Node:
    """Minus the log-probability of the class"""
    return _negative_log_likelihood(self, target, weight, reduction, ignore_index)


@aten("nll_loss_forward.default", "nll_loss2d_forward.default")
def nll_loss_forward(
    at: OpContext, self: Node, target: Node, weight: Node | None, reduction: int, ignore_index: int
) -> list[Node]:
    """The same, as one of two results"""
    return [_negative_log_likelihood(self, target, weight, reduction, ignore_index)]


@aten("cross_entropy_loss.default")
def cross_entropy(
    at: OpContext,
    self: Node,
    target: Node,
    weight: Node | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Node:
    """-log softmax(x)[t], of classes or of probabilities t; with smoothing every class counts a little"""
    axis = 1 if self.ty.rank > 1 else 0
    if not is_float(target.dtype) and label_smoothing == 0.0:  # a composite with kernels of its own

        def pick(safe: Node, axis: int) -> Node:
            return ops.softmax_cross_entropy(self, safe, axis)

        return _of_classes(pick, self, target, weight, reduction, ignore_index)
    log_p = ops.log_softmax(self, axis)
    if is_float(target.dtype) and target.shape == self.shape:
        return _of_probabilities(log_p, target, weight, axis, reduction, label_smoothing)
    return _smoothed(log_p, target, weight, axis, reduction, ignore_index, label_smoothing)


def _of_probabilities(
    log_p: Node, target: Node, weight: Node | None, axis: int, reduction: int, smoothing: float
) -> Node:
    classes = log_p.shape[axis]
    t = target if smoothing == 0.0 else target * (1 - smoothing) + smoothing / classes
    each = ops.neg(ops.sum(log_p * t * (1.0 if weight is None else _lined(weight, axis, log_p.ty.rank)), axis))
    if reduction == MEAN:
        return ops.sum(each) / float(max(each.ty.size, 1)) if each.ty.rank else each
    return _reduced(each, reduction)


def _lined(weight: Node, axis: int, rank: int) -> Node:
    return ops.reshape(weight, tuple(weight.ty.size if a == axis else 1 for a in range(rank)))


def _smoothed(
    log_p: Node,
    target: Node,
    weight: Node | None,
    axis: int,
    reduction: int,
    ignore_index: int,
    smoothing: float,
) -> Node:
    hard = _negative_log_likelihood(log_p, target, weight, reduction, ignore_index)
    weighted = log_p if weight is None else log_p * _lined(weight, axis, log_p.ty.rank)
    counted = ops.not_equal(target, cast(ignore_index, target.dtype))
    every = ops.where(counted, ops.neg(ops.sum(weighted, axis)), 0.0)
    if reduction != NONE:
        share = cast(counted, log_p.dtype)
        if weight is not None:
            share = share * ops.take(weight, ops.where(counted, target, cast(0, target.dtype)), 0)
        total = ops.sum(every) if every.ty.rank else every
        every = total / (ops.sum(share) if share.ty.rank else share) if reduction == MEAN else total
    return hard * (1 - smoothing) + every * (smoothing / log_p.shape[axis])


@aten("multi_margin_loss.default")
def multi_margin(
    at: OpContext,
    self: Node,
    target: Node,
    p: Number = 1,
    margin: Number = 1,
    weight: Node | None = None,
    reduction: int = MEAN,
) -> Node:
    """Σ over other classes max(0, margin - x[t] + x[k]) ** p / classes"""
    classes = self.shape[-1]
    own = ops.expand_dims(target, -1)
    gap = ops.maximum(self - ops.gather(self, own, self.ty.rank - 1) + margin, 0.0)
    gap = gap if p == 1 else gap * gap
    if weight is not None:
        gap = gap * ops.expand_dims(ops.take(weight, target, 0), -1)
    other = ops.not_equal(ops.iota(self.shape, self.ty.rank - 1, target.dtype), own)
    return _reduced(ops.sum(ops.where(other, gap, 0.0), -1) / float(classes), reduction)


@aten("multilabel_margin_loss.default")
def multilabel_margin(at: OpContext, self: Node, target: Node, reduction: int = MEAN) -> Node:
    """Σ over true and other classes max(0, 1 - (x[true] - x[other])) / classes; the true ones end at the first -1"""
    x, t = (v if v.ty.rank == 2 else ops.reshape(v, (1, v.ty.size)) for v in (self, target))
    n, classes = x.shape
    ended = ops.greater(ops.cumsum(cast(ops.less(t, 0), "i32"), 1), 0)
    true = ops.where(ended, 0, t)
    given = ops.logical_not(ended)
    hit = ops.equal(ops.expand_dims(true, -1), ops.iota((n, classes, classes), 2, t.dtype))
    hit = ops.logical_and(hit, ops.expand_dims(given, -1))  # (n, number of the target, class)
    is_true = ops.greater(ops.max(cast(hit, "i32"), 1), 0)
    own = ops.expand_dims(ops.gather(x, true, 1), -1)
    gap = ops.maximum(1.0 - (own - ops.expand_dims(x, 1)), 0.0)
    counts = ops.logical_and(ops.expand_dims(given, -1), ops.expand_dims(ops.logical_not(is_true), 1))
    each = ops.sum(ops.where(counts, gap, 0.0), (1, 2)) / float(classes)
    return _reduced(each if self.ty.rank == 2 else ops.reshape(each, ()), reduction)


# -- of embeddings


def _norm(x: Node, p: Number, eps: float) -> Node:
    if p == 2:
        return ops.sqrt(ops.sum((x + eps) * (x + eps), -1))
    return ops.pow(ops.sum(ops.pow(ops.abs(x + eps), float(p)), -1), 1.0 / p)


@aten("triplet_margin_loss.default")
def triplet_margin(
    at: OpContext,
    anchor: Node,
    positive: Node,
    negative: Node,
    margin: float = 1.0,
    p: Number = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: int = MEAN,
) -> Node:
    """max(0, |a - p| - |a - n| + margin)"""
    near, far = _norm(anchor - positive, p, eps), _norm(anchor - negative, p, eps)
    if swap:
        far = ops.minimum_even(far, _norm(positive - negative, p, eps))
    return _reduced(ops.maximum(near - far + margin, 0.0), reduction)


@aten("cosine_embedding_loss.default")
def cosine_embedding(
    at: OpContext, input1: Node, input2: Node, target: Node, margin: float = 0.0, reduction: int = MEAN
) -> Node:
    """1 - cos where the target is 1, max(0, cos - margin) where it is -1"""
    tiny = 1e-12
    dot = ops.sum(input1 * input2, -1)
    squares = (ops.sum(input1 * input1, -1) + tiny) * (ops.sum(input2 * input2, -1) + tiny)
    cos = dot / ops.sqrt(squares)
    same, other = ops.equal(target, cast(1, target.dtype)), ops.equal(target, cast(-1, target.dtype))
    each = ops.where(same, 1.0 - cos, 0.0) + ops.where(other, ops.maximum(cos - margin, 0.0), 0.0)
    return _reduced(each, reduction)


@aten("margin_ranking_loss.default")
def margin_ranking(
    at: OpContext, input1: Node, input2: Node, target: Node, margin: float = 0.0, reduction: int = MEAN
) -> Node:
    """max(0, -t (x1 - x2) + margin)"""
    return _reduced(ops.maximum(ops.neg(cast(target, input1.dtype)) * (input1 - input2) + margin, 0.0), reduction)


@aten("hinge_embedding_loss.default")
def hinge_embedding(at: OpContext, self: Node, target: Node, margin: float = 1.0, reduction: int = MEAN) -> Node:
    """x where the target is 1, max(0, margin - x) where it is -1"""
    hinge = ops.where(ops.not_equal(target, cast(1, target.dtype)), ops.maximum(margin - self, 0.0), 0.0)
    own = ops.where(ops.not_equal(target, cast(-1, target.dtype)), self, 0.0)
    return _reduced(hinge + own, reduction)


# -- of sequences


@aten("ctc_loss.IntList", "ctc_loss.Tensor")
def ctc_loss(
    at: OpContext,
    log_probs: Node,
    targets: Node,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = MEAN,
    zero_infinity: bool = False,
) -> Node:
    """Minus the log-probability of all alignments of the targets with the steps (Graves et al. 2006)"""
    frames, symbols = (cast(x if isinstance(x, Node) else constant(x), "i32") for x in (input_lengths, target_lengths))
    alone = log_probs.ty.rank == 2
    if alone:
        log_probs = ops.expand_dims(log_probs, 1)
        targets = ops.reshape(targets, (1, targets.ty.size))
        frames, symbols = (ops.reshape(x, (1,)) for x in (frames, symbols))
    if targets.ty.rank == 1:
        targets = _padded(at, targets, target_lengths, log_probs.shape[1])
    cost, enough = negative_log_likelihood(log_probs, cast(targets, "i32"), frames, symbols, blank)
    each = ops.where(enough, cost, 0.0 if zero_infinity else math.inf)
    if reduction == MEAN:
        return ops.mean(each / cast(ops.maximum(symbols, 1), each.dtype))
    return ops.reshape(each, ()) if alone and reduction == NONE else _reduced(each, reduction)


TABLE["gluongraph.ctc_loss.default"] = ctc_loss


def _padded(at: OpContext, targets: Node, lengths: Any, n: int) -> Node:
    """(N, S) of targets one after another, whose lengths do not depend on data."""
    known = at.known(lengths, "target_lengths").reshape(-1)
    begins = np.cumsum(known) - known
    width = int(max(known.max(), 1))
    index = np.minimum(begins[:, None] + np.arange(width), targets.ty.size - 1)
    return ops.take(targets, constant(index.astype(np.int32)), 0)
