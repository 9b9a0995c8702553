"""Tokens and their numbers, by MXNet's names: mx.contrib.text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def count_tokens_from_str(
    source_str: str,
    token_delim: str = " ",
    seq_delim: str = "\n",
    to_lower: bool = False,
    counter_to_update: Counter[str] | None = None,
) -> Counter[str]:
    """How often each token occurs; added to `counter_to_update` if that is given.

    >>> sorted(count_tokens_from_str("a b b\\nc a").items())
    [('a', 2), ('b', 2), ('c', 1)]
    """
    counter: Counter[str] = Counter() if counter_to_update is None else counter_to_update
    tokens = (token for token in re.split(f"{token_delim}|{seq_delim}", source_str) if token)
    counter.update(token.lower() if to_lower else token for token in tokens)  # delimiters are looked for as they are
    return counter


class Vocabulary:
    """Tokens by number: the unknown token first, then the reserved ones, then those counted, the most frequent first.

    Equally frequent ones come in alphabetical order. At most `most_freq_count` counted tokens, each seen `min_freq`
    times or more.

    >>> words = Vocabulary(count_tokens_from_str("b a b"), reserved_tokens=["<eos>"])
    >>> words.idx_to_token, words.to_indices(["a", "z"]), words.to_tokens(2)
    (['<unk>', '<eos>', 'b', 'a'], [3, 0], 'b')
    """

    def __init__(
        self,
        counter: Mapping[str, int] | None = None,
        most_freq_count: int | None = None,
        min_freq: int = 1,
        unknown_token: str = "<unk>",
        reserved_tokens: Sequence[str] | None = None,
    ):
        if min_freq < 1:
            raise AssertionError(f"min_freq is a positive number, not {min_freq}")
        reserved = list(reserved_tokens or ())
        if len(set(reserved)) < len(reserved):
            raise AssertionError(f"reserved_tokens name one twice: {reserved}")
        if unknown_token in reserved:
            raise AssertionError(f"reserved_tokens contain the unknown token {unknown_token!r}")
        self.unknown_token = unknown_token
        self.reserved_tokens = reserved or None
        first = [unknown_token, *reserved]
        ranked = sorted((counter or {}).items(), key=lambda pair: (-pair[1], pair[0]))
        counted = [token for token, times in ranked if times >= min_freq and token not in first]
        self.idx_to_token = first + counted[:most_freq_count]
        self.token_to_idx = {token: i for i, token in enumerate(self.idx_to_token)}

    def __len__(self) -> int:
        return len(self.idx_to_token)

    def to_indices(self, tokens: str | Sequence[str]) -> Any:
        """The number of a token, or those of several; 0 for unknown ones."""
        if isinstance(tokens, str):
            return self.token_to_idx.get(tokens, 0)
        return [self.token_to_idx.get(token, 0) for token in tokens]

    def to_tokens(self, indices: int | Sequence[int]) -> Any:
        """The token of a number, or those of several.

        Raises:
            ValueError: there is no token of that number.
        """
        if isinstance(indices, int):
            if not 0 <= indices < len(self.idx_to_token):
                raise ValueError(f"no token has the number {indices}; there are {len(self)}")
            return self.idx_to_token[indices]
        return [self.to_tokens(i) for i in indices]
