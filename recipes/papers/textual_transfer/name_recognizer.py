"""Names of persons and places by a trained recognizer of named entities."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from torch import Tensor
from transformers import AutoModelForTokenClassification

from ctrlreward.models.control_tokens import text_reader
from ctrlreward.models.frozen import FrozenModel
from ctrlreward.recipes.papers.textual_transfer.running_text import LOCATION, PERSON

# Last part of a label (`B-PER`, `GPE`), as CoNLL 2003 and OntoNotes have them.
_KINDS = {"PER": PERSON, "PERSON": PERSON, "LOC": LOCATION, "GPE": LOCATION, "LOCATION": LOCATION}


class NameRecognizer(FrozenModel):
    """A token classifier that replaces names by -PERSON- and -LOCATION-; see `write_literature`.

    Pang & Gimpel (2019), §5.1, replace names by a recognizer that they don't name. Neighbouring
    tokens of one kind are one name, and a name has whole words. Other entities stay.

    Args:
        model: Local folder or Hugging Face id, such as `"dslim/bert-base-NER"`, with a fast
            tokenizer.
        device: As in torch.
        dtype: See `ModelOptions`.

    Raises:
        ValueError: The model has no label for persons or none for places.
    """

    auto_class = AutoModelForTokenClassification

    def _prepare(self) -> None:
        names: Any = self.model.config.id2label
        kinds = [_KINDS.get(names[i].rpartition("-")[2].upper(), "") for i in range(len(names))]
        self._kinds = kinds
        if not {PERSON, LOCATION} <= {*kinds}:
            raise ValueError(
                f"model = {self.name!r} must have labels such as B-PER and B-LOC, got "
                f"{', '.join(names.values())}"
            )

    def __repr__(self) -> str:
        return f"NameRecognizer({self.name})"

    def __call__(self, sentences: Sequence[str]) -> list[str]:
        """Return the sentences in the same order, with names replaced."""
        if not sentences:
            return []
        cut = {"truncation": True, "max_length": self.max_tokens, "verbose": False}
        reader = text_reader(self.tokenizer, sentences)
        read = reader(list(sentences), return_offsets_mapping=True, **cut)

        def labels(output: Any, mask: Tensor) -> list[Any]:
            best = output.logits.argmax(-1).cpu().numpy()
            return [row[None, :n] for row, n in zip(best, mask.sum(-1).tolist(), strict=True)]

        rows = [tuple(ids) for ids in read.input_ids]
        found = self.read_texts(sentences, "sentences[{}]".format, labels, rows)
        return [
            self._replaced(sentence, spans, np.ravel(row).tolist())
            for sentence, spans, row in zip(sentences, read.offset_mapping, found, strict=True)
        ]

    def _replaced(
        self, sentence: str, spans: Sequence[tuple[int, int]], labels: Sequence[int]
    ) -> str:
        """Return a sentence with a placeholder for each name; `spans` are its tokens."""
        kinds = [""] * len(sentence)
        for (start, end), label in zip(spans, labels, strict=True):
            kinds[start:end] = [self._kinds[label]] * (end - start)
        words = []
        for match in re.finditer(r"\w+|\s+|[^\w\s]", sentence):
            inside = [] if match.group().isspace() else kinds[match.start() : match.end()]
            words.append((next(filter(None, inside), ""), match.group()))
        for i in range(1, len(words) - 1):  # white space between words of one name belongs to it
            if words[i][1].isspace() and words[i - 1][0] == words[i + 1][0]:
                words[i] = (words[i - 1][0], words[i][1])
        parts = groupby(words, lambda word: word[0])
        return "".join(kind or "".join(text for _, text in group) for kind, group in parts)
