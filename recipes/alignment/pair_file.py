"""The file of training pairs of aligners: building it, going on with it, reading it."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from ctrlreward.files import write_whole
from ctrlreward.recipes.alignment.pairs import (
    AlignmentPair,
    as_template,
    edit_lightly,
    make_pairs,
    mask_spans,
)
from ctrlreward.recipes.alignment.paraphraser import Paraphraser
from ctrlreward.recipes.alignment.span_filling import SpanFiller, load_span_filler
from ctrlreward.recipes.text_files import read_texts

Paraphrase = Callable[[Sequence[str]], list[str]]


@dataclass(frozen=True)
class PairFile:
    """A file of pairs and what it is built from.

    Args:
        file: Where the pairs are kept; one that was cut off is gone on with.
        texts: Files of one text a line.
        count: How many of the texts are used, 2 or more: each has another as its unrelated one.
        exclude: Files whose lines are not; see `text_files.read_texts`.
        infiller: The model that fills masked spans: a decoder-only one, a BART or a T5.
        paraphraser: An encoder-decoder that says a text in other words; None edits lightly.
        paraphraser_prompt: What it reads, with `{text}`.
        mask_share: Smallest and largest share of a text's words that is masked.
        max_spans: Most spans that they lie in, 1 or more.
        temperature: Of the sampled fillings.
        top_p: Of the sampled fillings.
        min_words: Shorter texts are not used.
        device: Where the models run.
        dtype: Of the models; None picks by device.
        seed: Of the choice of texts, of masking and of filling.

    Raises:
        ValueError: `count`, `mask_share` or `max_spans` is out of its range.
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

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ValueError(f"count = {self.count}: give 2 or more")
        if self.max_spans < 1:
            raise ValueError(f"max_spans = {self.max_spans}: give 1 or more")
        low, high = self.mask_share
        if not 0 <= low <= high <= 1:
            raise ValueError(f"mask_share = {self.mask_share}: give two shares of 0 to 1 in order")

    def build(self) -> None:
        """Builds the file, or what is missing of it.

        Raises:
            ValueError: There are fewer texts than `count`, the file was begun otherwise, or it and
                its `.state` don't fit each other.
        """
        models = [self.infiller, self.paraphraser, self.paraphraser_prompt]
        build_pairs(
            self.file,
            read_texts(self.texts, self.exclude, self.count, (self.min_words, None), self.seed),
            self._load_filler,
            self._load_paraphrase,
            share=self.mask_share,
            max_spans=self.max_spans,
            seed=self.seed,
            settings=str([*models, self.temperature, self.top_p, self.dtype]),
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
    number, so a resumed file equals one that was made at once. A second process that builds the
    same file waits for the first, by `<file>.lock`.

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
        ValueError: The file was begun with other texts or settings, has no `.state`, or is shorter
            than that says.
    """
    identity = json.dumps([settings, list(share), max_spans, seed, chunk, list(texts)])
    state = _State(Path(file), hashlib.sha256(identity.encode()).hexdigest())
    if state.path.is_file() and state.done() == len(texts):
        return  # without a lock: a finished file may lie where nothing can be written
    state.path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{file}.lock"):
        starts = range(state.done(), len(texts), chunk)
        if not starts:  # another process has built it meanwhile
            return
        filler, paraphrase = load_filler(), load_paraphrase()
        for start in starts:
            places = range(start, min(start + chunk, len(texts)))
            pairs = _chunk_pairs(texts, places, filler, paraphrase, share, max_spans, seed)
            state.append(pairs, places.stop)


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
    with open(file, encoding="utf-8", newline="\n") as lines:  # other line ends stand in texts
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
        self.bytes = 0

    def done(self) -> int:
        """Texts whose pairs the file holds. Changes nothing on the disk.

        Raises:
            ValueError: The file was begun otherwise, has no state, or is shorter than that says.
        """
        if not self.path.is_file():
            if self.file.exists():
                raise ValueError(
                    f"{self.file} is there without {self.path.name}, which says how far it is "
                    "good: remove it, or name another file"
                )
            return 0
        state = json.loads(self.path.read_text(encoding="utf-8"))
        if state["identity"] != self.identity:
            raise ValueError(
                f"{self.file} was begun with other texts or settings: remove it and "
                f"{self.path.name}, or name another file"
            )
        size = self.file.stat().st_size if self.file.exists() else 0
        if size < state["bytes"]:
            raise ValueError(
                f"{self.file} has {size} bytes, {state['bytes']} by {self.path.name}: put the "
                f"whole file back, or remove {self.path.name} and what there is of the file"
            )
        self.bytes = state["bytes"]
        return int(state["texts"])

    def append(self, pairs: Sequence[AlignmentPair], texts: int) -> None:
        """Writes pairs behind what is good, and that so many texts are done."""
        if not self.path.is_file():  # first, so that a file without a state is none of ours
            self._write(0)
        lines = [json.dumps(pair._asdict(), ensure_ascii=False) + "\n" for pair in pairs]
        with open(self.file, "ab") as file:
            file.truncate(self.bytes)
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())
        self.bytes = self.file.stat().st_size
        self._write(texts)

    def _write(self, texts: int) -> None:
        state = {"identity": self.identity, "texts": texts, "bytes": self.bytes}
        write_whole(self.path, json.dumps(state))
