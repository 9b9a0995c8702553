"""Vectors of tokens from files: mx.contrib.text.embedding."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gluongraph import nd
from gluongraph.contrib import pretrained
from gluongraph.contrib.text import Vocabulary
from gluongraph.errors import NameNotFoundError, warn, with_user_location
from gluongraph.host.file_names import check_name
from gluongraph.host.registry import Registry
from gluongraph.ndarray import NDArray

Make = Callable[..., NDArray]


class _TokenEmbedding(Vocabulary):
    """Tokens with a vector each, `idx_to_vec` (tokens, vec_len); the vector of unknown tokens is the first."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.idx_to_vec: NDArray = nd.zeros((1, 1))

    @property
    def vec_len(self) -> int:
        """How long a vector is."""
        return self.idx_to_vec.shape[1]

    def get_vecs_by_tokens(self, tokens: str | Sequence[str], lower_case_backup: bool = False) -> NDArray:
        """The vector of a token, or the vectors of several as rows; with `lower_case_backup` those of tokens that are
        not known are looked for in lower case."""
        listed = [tokens] if isinstance(tokens, str) else list(tokens)
        if lower_case_backup:
            listed = [token if token in self.token_to_idx else token.lower() for token in listed]
        found = self.idx_to_vec.take(nd.array(self.to_indices(listed), dtype="int32"))
        return found[0] if isinstance(tokens, str) else found

    def update_token_vectors(self, tokens: str | Sequence[str], new_vectors: NDArray) -> None:
        """Give tokens other vectors: one, or a row for each.

        Raises:
            AssertionError: vectors of another number or length.
            ValueError: a token is not known; `unknown_token` itself changes the vector of unknown ones.
        """
        listed = [tokens] if isinstance(tokens, str) else list(tokens)
        if isinstance(new_vectors, NDArray) and new_vectors.ndim == 1:
            new_vectors = new_vectors.reshape((1, -1))
        if not isinstance(new_vectors, NDArray) or new_vectors.shape != (len(listed), self.vec_len):
            shape = getattr(new_vectors, "shape", new_vectors)
            raise AssertionError(
                with_user_location(f"{len(listed)} vectors of {self.vec_len} numbers are needed, not {shape}")
            )
        for token in listed:
            if token not in self.token_to_idx:
                help = f"the vector of unknown tokens is that of {self.unknown_token!r}"
                raise ValueError(with_user_location(f"the token {token!r} is not known", help=help))
        for token, row in zip(listed, new_vectors.asnumpy(), strict=True):
            self.idx_to_vec[self.token_to_idx[token]] = row

    def _take_vocabulary(self, vocabulary: Vocabulary | None) -> None:
        """Keep the tokens of a vocabulary instead of those loaded, each with its vector."""
        if vocabulary is None:
            return
        if not isinstance(vocabulary, Vocabulary):
            raise AssertionError(f"vocabulary is a text.vocab.Vocabulary, not {vocabulary!r}")
        self._adopt(vocabulary, [self])

    def _adopt(self, vocabulary: Vocabulary, embeddings: Sequence[_TokenEmbedding]) -> None:
        tokens = list(vocabulary.idx_to_token)
        rest = [nd.concat(e.idx_to_vec[0:1], e.get_vecs_by_tokens(tokens[1:]), dim=0) for e in embeddings if tokens[1:]]
        self.idx_to_vec = nd.concat(*(rest or [e.idx_to_vec[0:1] for e in embeddings]), dim=1)
        self.idx_to_token, self.token_to_idx = tokens, dict(vocabulary.token_to_idx)
        self.unknown_token, self.reserved_tokens = vocabulary.unknown_token, vocabulary.reserved_tokens

    def _load(self, path: str, elem_delim: str, init_unknown_vec: Make, encoding: str) -> None:
        """Read a file of lines `token number number ...`.

        Raises:
            ArgumentError: the name of the file is empty.
            ValueError: there is no such file.
            AssertionError: a line is something else, or vectors have different lengths.
        """
        check_name(type(self).__name__, path, "CustomEmbedding('vectors.txt')")
        path = os.path.expanduser(path)
        if not os.path.isfile(path):
            raise ValueError(f"there is no file {path}")
        unknown: list[float] | None = None
        rows: dict[str, list[float]] = {}
        with open(path, encoding=encoding) as file:
            for number, line in enumerate(file, 1):
                token, *parts = line.rstrip().split(elem_delim)
                vector = _numbers(parts, f"{path}:{number}")
                if token == self.unknown_token and unknown is None:
                    unknown = vector
                elif token in rows or token == self.unknown_token:
                    warn(f"{path}:{number}: another vector of the token {token!r} is skipped")
                elif len(vector) == 1:
                    warn(f"{path}:{number}: {line.rstrip()!r} looks like a header, and is skipped")
                else:
                    known = len(next(iter(rows.values()), vector))
                    if len(vector) != known:
                        raise AssertionError(f"{path}:{number}: {len(vector)} numbers, where others have {known}")
                    rows[token] = vector
        size = len(next(iter(rows.values()), unknown or [0.0]))
        first = init_unknown_vec(shape=size).asnumpy() if unknown is None else np.array(unknown)
        self.idx_to_vec = nd.array(np.stack([first.reshape(size), *rows.values()]))
        self.idx_to_token = [*self.idx_to_token[:1], *rows]
        self.token_to_idx = {token: i for i, token in enumerate(self.idx_to_token)}


def _numbers(parts: Sequence[str], place: str) -> list[float]:
    try:
        found = [float(part) for part in parts]
    except ValueError as error:
        raise AssertionError(f"{place}: {error}") from None
    if not found:
        raise AssertionError(f"{place}: a token without a vector")
    return found


class CustomEmbedding(_TokenEmbedding):
    """Vectors from a file of one's own: lines of a token and its numbers with `elem_delim` between them.

    `init_unknown_vec(shape=n)` gives the vector of unknown tokens, unless the file has one of `unknown_token`. With a
    `vocabulary` its tokens are kept, else those of the file.
    """

    def __init__(
        self,
        pretrained_file_path: str,
        elem_delim: str = " ",
        encoding: str = "utf8",
        init_unknown_vec: Make = nd.zeros,
        vocabulary: Vocabulary | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self._load(pretrained_file_path, elem_delim, init_unknown_vec, encoding)
        self._take_vocabulary(vocabulary)


class CompositeEmbedding(_TokenEmbedding):
    """The vectors of several embeddings one behind the other, for the tokens of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary, token_embeddings: _TokenEmbedding | Sequence[_TokenEmbedding]):
        super().__init__()
        listed = [token_embeddings] if isinstance(token_embeddings, _TokenEmbedding) else list(token_embeddings)
        if not isinstance(vocabulary, Vocabulary) or not all(isinstance(e, _TokenEmbedding) for e in listed):
            raise AssertionError("CompositeEmbedding takes a Vocabulary and embeddings of tokens")
        self._adopt(vocabulary, listed)


class _Pretrained(_TokenEmbedding):
    """An embedding whose files MXNet's server has; they are fetched into `embedding_root`, ~/.mxnet/embeddings."""

    _default = ""

    def __init__(
        self,
        pretrained_file_name: str | None = None,
        embedding_root: str | None = None,
        init_unknown_vec: Make = nd.zeros,
        vocabulary: Vocabulary | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        root = pretrained.default_root() if embedding_root is None else embedding_root
        path = pretrained.fetched(type(self)._files_of(), pretrained_file_name or self._default, root)
        self._load(path, " ", init_unknown_vec, "utf8")
        self._take_vocabulary(vocabulary)

    @classmethod
    def _files_of(cls) -> str:
        return next(each.__name__.lower() for each in cls.__mro__ if _Pretrained in each.__bases__)


class GloVe(_Pretrained):
    """Vectors of tokens from co-occurrences in large corpora (Pennington and others, 2014)."""

    _default = "glove.840B.300d.txt"


class FastText(_Pretrained):
    """Vectors of tokens from the vectors of their parts (Bojanowski and others, 2017), of many languages."""

    _default = "wiki.simple.vec"


TokenEmbedding = _TokenEmbedding
_REGISTRY = Registry(_TokenEmbedding, "token embedding")


def register(embedding_cls: type[_TokenEmbedding]) -> type[_TokenEmbedding]:
    """Class decorator: makes an embedding known by its name in lower case, for `create`."""
    _REGISTRY.register(embedding_cls)
    return embedding_cls


for _each in (GloVe, FastText, CustomEmbedding):
    register(_each)


def get_pretrained_file_names(embedding_name: str | None = None) -> Any:
    """The files of an embedding that can be fetched, as a list; of all that are registered, as a dict of lists.

    Raises:
        KeyError: none of that name is registered.
    """
    classes = _REGISTRY.classes()
    if embedding_name is None:
        return {name: _file_names(cls) for name, cls in classes.items()}
    if embedding_name not in classes:
        help = f"there are {', '.join(sorted(classes))}"
        raise NameNotFoundError(with_user_location(f"no token embedding is called {embedding_name!r}", help=help))
    return _file_names(classes[embedding_name])


def _file_names(cls: type[_TokenEmbedding]) -> list[str]:
    return list(pretrained.listed(cls._files_of())) if issubclass(cls, _Pretrained) else []


def create(embedding_name: str, **kwargs: Any) -> _TokenEmbedding:
    """A registered embedding by its name, `create("glove", pretrained_file_name="glove.6B.50d.txt")`.

    Raises:
        AssertionError: none of that name is registered.
    """
    return _REGISTRY.create(embedding_name, **kwargs)
