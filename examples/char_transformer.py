"""A small GPT that learns to write Python, character by character, from the standard library's own source files.

Prints the loss beside the unigram entropy (what a model that only knows how frequent each character is would get), and
a sample of what it writes.

    python examples/char_transformer.py --steps 1200
"""

from __future__ import annotations

import argparse
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.cli.words import count
from gluongraph.gluon import nn

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
LAYERS, WIDTH, HEADS, LENGTH, BATCH = 3, 128, 4, 64, 24
CHARACTERS = 1_500_000


class Layer(gluon.HybridBlock):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(in_channels=width), nn.LayerNorm(in_channels=width)
        self.qkv = nn.Dense(3 * width, flatten=False, in_units=width)
        self.project = nn.Dense(width, flatten=False, in_units=width)
        self.mlp = nn.HybridSequential()
        self.mlp.add(nn.Dense(4 * width, flatten=False, in_units=width), nn.GELU())
        self.mlp.add(nn.Dense(width, flatten=False, in_units=4 * width))

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))

    def attention(self, x: Any) -> Any:
        """Each position looks at those before it and at itself."""
        n, length, width = x.shape
        qkv = self.qkv(x).reshape((n, length, 3, self.heads, width // self.heads)).transpose((2, 0, 3, 1, 4))
        y = nd.attention(qkv[0], qkv[1], qkv[2], causal=True)
        return self.project(y.transpose((0, 2, 1, 3)).reshape((n, length, width)))


class Gpt(gluon.HybridBlock):
    """Characters (batch, LENGTH) -> scores of the next character at each position."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), WIDTH)
        self.positions = self.params.get("positions", shape=(LENGTH, WIDTH))
        self.layers = nn.HybridSequential()
        self.layers.add(*(Layer(WIDTH, HEADS) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(in_channels=WIDTH)
        self.scores = nn.Dense(len(ALPHABET), flatten=False, in_units=WIDTH)

    def forward(self, x: Any) -> Any:
        return self.scores(self.norm(self.layers(self.characters(x) + self.positions.data())))


def main(argv: Sequence[str] | None = None) -> tuple[float, float]:
    """Train, tell, and return the last loss and the unigram entropy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=count, default=1200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=count, default=300, help="characters to write at the end")
    options = parser.parse_args(argv)
    mx.random.seed(options.seed)
    rng = np.random.default_rng(options.seed)

    text = corpus()
    entropy = unigram_entropy(text)
    print(f"{len(text):,} characters of Python; unigram entropy {entropy:.3f} nats a character")
    net = Gpt()
    net.initialize(mx.init.Normal(0.02))
    warm = options.steps // 10
    schedule = mx.lr_scheduler.CosineScheduler(options.steps, base_lr=3e-3, final_lr=3e-4, warmup_steps=warm)
    trainer = gluon.Trainer(net.collect_params(), "adamw", {"wd": 0.01, "lr_scheduler": schedule})
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
    loss = fit(step, text, options.steps, rng)
    print(f"loss {loss:.3f}, unigram entropy {entropy:.3f}")
    print(write(net, "def ", options.sample, rng))
    return loss, entropy


def corpus() -> np.ndarray[Any, Any]:
    """The first source files of the standard library in alphabetical order, as numbers of characters."""
    table = np.full(256, ALPHABET.index("?"), np.int32)
    for number, character in enumerate(ALPHABET):
        table[ord(character)] = number
    parts, size = [], 0
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        if size < CHARACTERS:
            parts.append(table[np.frombuffer(file.read_bytes(), np.uint8)])
            size += len(parts[-1])
    return np.concatenate(parts)


def unigram_entropy(text: np.ndarray[Any, Any]) -> float:
    """-sum p log p over the frequencies of the characters, in nats."""
    p = np.bincount(text) / len(text)
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def fit(step: Any, text: np.ndarray[Any, Any], steps: int, rng: np.random.Generator) -> float:
    """Train on random pieces of the text; the mean loss of the last steps."""
    losses: list[float] = []
    with tqdm(range(steps), unit="step") as bar:
        for _ in bar:
            starts = rng.integers(0, len(text) - LENGTH - 1, BATCH)
            piece = text[starts[:, None] + np.arange(LENGTH + 1)]
            losses.append(float(step(piece[:, :-1], piece[:, 1:]).mean()))
            bar.set_description(f"loss {losses[-1]:.3f}", refresh=False)
    return float(np.mean(losses[-20:]))


def write(net: Any, start: str, more: int, rng: np.random.Generator, temperature: float = 0.7) -> str:
    """`start` and `more` characters that the net goes on with, drawn one after the other."""
    net.hybridize()  # compiled once for a batch of one
    written = [ALPHABET.index(character) for character in start]
    for _ in range(more):
        seen = written[-LENGTH:]
        window = np.zeros((1, LENGTH), np.int32)
        window[0, : len(seen)] = seen  # what comes after the last character cannot be seen from there
        scores = net(nd.array(window, dtype="int32")).asnumpy()[0, len(seen) - 1].astype(np.float64) / temperature
        p = np.exp(scores - scores.max())
        written.append(int(rng.choice(len(p), p=p / p.sum())))
    return "".join(ALPHABET[number] for number in written)


if __name__ == "__main__":
    main()
