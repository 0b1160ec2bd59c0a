"""Sentences and the intents behind them, as numbers: embeddings, and counts of words."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import wordllama
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.preprocessing import normalize
from wordllama import WordLlama

NGRAMS = 4096
"""Columns that pairs of words and words are hashed into."""
WORDS = 6000
"""Word vectors that sentences are compared with."""

Numbers = NDArray[np.float32]
Sentences = tuple[list[str], list[str]]
"""Texts and their intents."""


class Part(NamedTuple):
    """Some sentences as numbers."""

    x: Numbers
    y: NDArray[np.str_]


class Intents(NamedTuple):
    """A set: what to learn from, to choose settings on, to learn from at the end, and to measure on."""

    train: Part
    valid: Part
    all: Part
    test: Part
    out_of_scope: Numbers | None
    """Sentences that belong to no intent."""


class Encoder:
    """Sentences as unit vectors: embeddings, beside them counts of words and pairs of words where asked for."""

    def __init__(self) -> None:
        package = Path(wordllama.__file__).parent  # the wheel brings its weights
        self.model = WordLlama.load(cache_dir=package, disable_download=True)
        options = {"token_pattern": r"\b\w+\b", "alternate_sign": False, "norm": None}
        self.counts = HashingVectorizer(ngram_range=(1, 2), n_features=NGRAMS, **options)

    def words(self) -> Numbers:
        """A random choice of word vectors, of norm 1."""
        chosen = np.random.default_rng(0).permutation(len(self.model.embedding))[:WORDS]
        return normalize(self.model.embedding[chosen])

    def __call__(self, texts: list[str], *, ngrams: bool) -> Numbers:
        """Embeddings, and counts if asked for."""
        embedded = self.model.embed(texts, norm=True)
        if not ngrams:
            return embedded
        counted: csr_matrix = self.counts.transform(texts)
        counted.data = 1 + np.log(counted.data)
        return np.hstack([embedded, normalize(counted).toarray()]).astype(np.float32)


def load(name: str, encoder: Encoder, *, ngrams: bool, most_classes: int | None = None) -> Intents:
    """A set from the data folder, perhaps with the first few of its intents only."""
    folder = Path(os.environ["TORCHPFC_DATA"]) / "intents"
    train, valid, every, test, outside = clinc150(folder) if name == "clinc150" else banking77(folder)
    kept = set(sorted(set(train[1]))[:most_classes])

    def encode(sentences: Sentences) -> Part:
        chosen = [(text, label) for text, label in zip(*sentences, strict=True) if label in kept]
        return Part(encoder([text for text, _ in chosen], ngrams=ngrams), np.array([label for _, label in chosen]))

    strange = encoder(outside, ngrams=ngrams) if outside else None
    return Intents(encode(train), encode(valid), encode(every), encode(test), strange)


def clinc150(folder: Path) -> tuple[Sentences, Sentences, Sentences, Sentences, list[str]]:
    """Its own validation sentences, which are not learned from."""
    parts = json.loads((folder / "clinc150.json").read_text("utf-8"))
    train, valid, test = (tuple(map(list, zip(*parts[name], strict=True))) for name in ("train", "val", "test"))
    return train, valid, train, test, [text for text, _ in parts["oos_test"]]


def banking77(folder: Path) -> tuple[Sentences, Sentences, Sentences, Sentences, list[str]]:
    """A fifth of the training sentences to choose settings on; what was chosen learns from all of them."""

    def read(name: str) -> list[tuple[str, str]]:
        with (folder / f"banking77-{name}.csv").open(encoding="utf-8", newline="") as file:
            return [(text, label) for text, label in list(csv.reader(file))[1:]]

    rows, test = read("train"), read("test")
    order = np.random.default_rng(0).permutation(len(rows))
    fifth = len(rows) // 5
    parts = ([rows[i] for i in order[fifth:]], [rows[i] for i in order[:fifth]], rows, test)
    train, valid, every, last = (tuple(map(list, zip(*part, strict=True))) for part in parts)
    return train, valid, every, last, []
