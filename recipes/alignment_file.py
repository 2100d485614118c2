"""The file of training pairs of aligners: building it, going on with it, reading it."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ctrlreward.models.paraphraser import Paraphraser
from ctrlreward.models.span_filling import SpanFiller, load_span_filler
from ctrlreward.recipes.alignment_data import (
    AlignmentPair,
    as_template,
    edit_lightly,
    make_pairs,
    mask_spans,
    read_texts,
)

Paraphrase = Callable[[Sequence[str]], list[str]]


@dataclass(frozen=True)
class PairFile:
    """A file of pairs and what it is built from.

    Args:
        file: Where the pairs are kept; one that was cut off is gone on with.
        texts: Files of one text a line.
        count: How many of the texts are used.
        exclude: Files whose lines are not; see `alignment_data.read_texts`.
        infiller: The model that fills masked spans: a decoder-only one, a BART or a T5.
        paraphraser: An encoder-decoder that says a text in other words; None edits lightly.
        paraphraser_prompt: What it reads, with `{text}`.
        mask_share: Smallest and largest share of a text's words that is masked.
        max_spans: Most spans that they lie in.
        temperature: Of the sampled fillings.
        top_p: Of the sampled fillings.
        min_words: Shorter texts are not used.
        device: Where the models run.
        dtype: Of the models; None picks by device.
        seed: Of the choice of texts, of masking and of filling.
    """

    file: str
    texts: list[str]
    count: int
    exclude: Sequence[str] = ()
    infiller: str = "smollm2-135m"
    paraphraser: str | None = None
    paraphraser_prompt: str = "{text}"
    mask_share: tuple[float, float] = (0.15, 0.5)
    max_spans: int = 2
    temperature: float = 1.0
    top_p: float = 0.95
    min_words: int = 4
    device: str = "cpu"
    dtype: str | None = None
    seed: int = 0

    def build(self) -> None:
        """Builds the file, or what is missing of it.

        Raises:
            ValueError: There are fewer texts than `count`, or the file was begun otherwise.
        """
        models = [self.infiller, self.paraphraser, self.paraphraser_prompt]
        build_pairs(
            self.file,
            read_texts(self.texts, self.exclude, self.count, self.min_words, self.seed),
            self._load_filler,
            self._load_paraphrase,
            share=self.mask_share,
            max_spans=self.max_spans,
            seed=self.seed,
            settings=str([*models, self.temperature, self.top_p]),
        )

    def _load_filler(self) -> SpanFiller:
        return load_span_filler(
            self.infiller,
            self.device,
            self.dtype,
            temperature=self.temperature,
            top_p=self.top_p,
        )

    def _load_paraphrase(self) -> Paraphrase | None:
        if self.paraphraser is None:
            return None
        return Paraphraser(self.paraphraser, self.paraphraser_prompt, self.device, self.dtype)


def build_pairs(
    file: str,
    texts: Sequence[str],
    load_filler: Callable[[], SpanFiller],
    load_paraphrase: Callable[[], Paraphrase | None],
    share: tuple[float, float] = (0.15, 0.5),
    max_spans: int = 2,
    seed: int = 0,
    chunk: int = 128,
    settings: str = "",
) -> None:
    """Writes the pairs of all texts to a JSONL file, and goes on with one that was cut off.

    A chunk of texts is written when it is done, and `<file>.state` then says how far the file is
    good: what a killed run left behind it is cut off. A chunk's chances come from `seed` and its
    number, so a resumed file equals one that was made at once.

    Args:
        file: Where to; one `AlignmentPair` a line, as an object.
        texts: What the pairs are made from.
        load_filler: Gives the model that fills the blanks; called only if texts are left.
        load_paraphrase: Gives what says texts in other words, or None for `edit_lightly`.
        share: See `mask_spans`.
        max_spans: See `mask_spans`.
        seed: Of masking, editing and filling.
        chunk: Texts done at a time.
        settings: Names the models; a file of other settings is not gone on with.

    Raises:
        ValueError: The file was begun with other texts or settings.
    """
    identity = json.dumps([settings, list(share), max_spans, seed, chunk, list(texts)])
    state = _State(Path(file), hashlib.sha256(identity.encode()).hexdigest())
    done = state.resume()
    if done >= len(texts):
        return
    filler, paraphrase = load_filler(), load_paraphrase()
    for start in range(done, len(texts), chunk):
        state.append(
            _chunk_pairs(
                texts,
                range(start, min(start + chunk, len(texts))),
                filler,
                paraphrase,
                share,
                max_spans,
                seed,
            ),
            min(start + chunk, len(texts)),
        )


def _chunk_pairs(
    texts: Sequence[str],
    places: range,
    filler: SpanFiller,
    paraphrase: Paraphrase | None,
    share: tuple[float, float],
    max_spans: int,
    seed: int,
) -> list[AlignmentPair]:
    """The pairs of the texts at these places."""
    number = int(hashlib.sha256(f"{seed}:{places.start}".encode()).hexdigest()[:8], 16)
    chance = random.Random(number)
    chosen = [texts[i] for i in places]
    if paraphrase:
        others = [o or text for o, text in zip(paraphrase(chosen), chosen, strict=True)]
    else:
        others = [edit_lightly(text, chance) for text in chosen]
    spans = [mask_spans(other, chance, share, max_spans) for other in others]
    templates = [as_template(other, row) for other, row in zip(others, spans, strict=True)]
    fillings = filler.fill(templates, number)
    pairs: list[AlignmentPair] = []
    for i, text, other, masked, filling in zip(
        places, chosen, others, spans, fillings, strict=True
    ):
        stranger = texts[(i + 1) % len(texts)]
        pairs += make_pairs(i, (text, other, stranger), masked, filling)
    return pairs


def read_pairs(file: str) -> list[AlignmentPair]:
    """The pairs of a file that `build_pairs` wrote."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        AlignmentPair(
            row["source"], row["a"], row["b"], tuple((s, e) for s, e in row["hallucinated"])
        )
        for row in rows
    ]


class _State:
    """How far a file is good, in a small file beside it."""

    def __init__(self, file: Path, identity: str) -> None:
        self.file = file
        self.path = file.with_name(file.name + ".state")
        self.identity = identity

    def resume(self) -> int:
        """Texts that are done; cuts off what was written of others."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.is_file():
            self.file.write_bytes(b"")
            return 0
        state = json.loads(self.path.read_text(encoding="utf-8"))
        if state["identity"] != self.identity:
            raise ValueError(
                f"{self.file} was begun with other texts or settings: remove it and "
                f"{self.path.name}, or name another file"
            )
        os.truncate(self.file, state["bytes"])
        return int(state["texts"])

    def append(self, pairs: Sequence[AlignmentPair], texts: int) -> None:
        """Writes pairs, and that so many texts are done."""
        with open(self.file, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(pair._asdict(), ensure_ascii=False) + "\n" for pair in pairs)
            file.flush()
            os.fsync(file.fileno())
        state = {"identity": self.identity, "texts": texts, "bytes": self.file.stat().st_size}
        unfinished = self.path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(state), encoding="utf-8")
        os.replace(unfinished, self.path)
