"""Training data of aligners: a file of labelled pairs, built from texts, and its data module."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from filelock import FileLock
from torch.utils.data import DataLoader

from ctrlreward.arguments import one_of
from ctrlreward.files import JsonLog
from ctrlreward.progress import track
from ctrlreward.recipes.papers.ctc.constituents import load_parser, mask_constituents
from ctrlreward.recipes.papers.ctc.generators import Paraphraser
from ctrlreward.recipes.papers.ctc.labelled_pairs import (
    AlignmentPair,
    Labels,
    Span,
    as_template,
    edit_lightly,
    make_pairs,
    mask_spans,
)
from ctrlreward.recipes.papers.ctc.pair_kinds import KINDS, PairKind, sample_rows
from ctrlreward.recipes.papers.ctc.passages import PassagePairs, read_passages
from ctrlreward.recipes.papers.ctc.span_filling import SpanFiller, load_span_filler
from ctrlreward.recipes.text_files import WORD

Paraphrase = Callable[[Sequence[str]], list[str]]

# Settings of a `PairFile` that show in its texts, or do not change the pairs.
_OF_TEXTS = {"file", "texts", "count", "exclude", "min_words", "passage_words", "device"}


@dataclass(frozen=True)
class PairFile:
    """A file of training pairs and the settings it is built with.

    A JSON Lines file: the settings, then one line per chunk of texts, `{"texts": 128, "pairs":
    [{"source": 0, "a": …, "b": …, "hallucinated": [[4, 9]]}, …]}`. A file whose build was
    interrupted is resumed, and then equals one that was built in a single run.

    Args:
        file: Path of the file.
        texts: Files of one text per line, or of JSON records for a kind that reads keys.
        count: Number of texts to use, 2 or more: each text has another as its unrelated text.
        exclude: Files of texts that are not used; see `text_files.sample_texts`.
        infiller: Model that fills masked spans: a decoder-only model or a BART.
        paraphraser: Encoder-decoder that paraphrases texts; None edits them lightly instead.
        paraphraser_prompt: Input of the paraphraser, with `{text}`.
        mask_share: Smallest and largest share of a text's words to mask.
        max_spans: Largest number of masked spans, 1 or more.
        temperature: Sampling temperature of the fillings.
        top_p: Total probability of the most likely tokens that fillings are sampled from.
        min_words: Smallest number of words of a text.
        passage_words: Smallest and largest number of words of a passage, if the files are running
            text, such as WikiText and novels, of which passages are read by
            `passages.read_passages`; None reads a text per line.
        device: Device of the models.
        dtype: Dtype of the models; None picks by device.
        seed: Seed of the choice of texts, of masking and of filling.
        kind: Which text is altered and what supports it (appendix A of the paper): `"transfer"`,
            a text and itself; `"summary"`, one to three sentences of a document by TextRank, and
            the document; `"reference"`, a record's `reference` and itself; `"dialog"`, its `text`,
            and its `context` and `history`; `"dialog_fact"`, one to three facts of its `context`,
            and the context.
        parser: Language of stanza's models, `"en"`, whose constituents are masked, as in the paper;
            where stanza is not installed, and for None, runs of words are.
        paraphrases: Number of paraphrases, of which the farthest is taken; the paper's is 10.
        labels: See `labelled_pairs.make_pairs`; the paper's is `"fillings"`.
        extra_pairs: See `labelled_pairs.make_pairs`; the paper has none.
        chunk_size: Texts per line of the file, which is as much as an interruption can lose. Part
            of the settings, since every chunk has its own seed.

    Raises:
        ValueError: `count`, `mask_share`, `max_spans`, `chunk_size` or `paraphrases` is out of
            range.
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
    passage_words: tuple[int, int] | None = None
    device: str = "cpu"
    dtype: str | None = None
    seed: int = 0
    chunk_size: int = 128
    kind: PairKind = "transfer"
    parser: str | None = None
    paraphrases: int = 1
    labels: Labels = "words"
    extra_pairs: bool = True

    def __post_init__(self) -> None:
        for name, least in {"count": 2, "max_spans": 1, "chunk_size": 1, "paraphrases": 1}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be {least} or more, got {getattr(self, name)}")
        low, high = self.mask_share
        if not 0 <= low <= high <= 1:
            raise ValueError(
                f"mask_share must be two shares of 0 to 1 in order, got {self.mask_share}"
            )

    def build(self) -> None:
        """Build the file, or resume it. A second process that builds the same file waits.

        A complete file is only read, so it may lie in a folder without write permission. Models are
        loaded only if texts are left.

        Raises:
            ValueError: There are fewer texts than `count`, or the file was started with other
                texts or settings.
        """
        kind = one_of("kind", self.kind, KINDS)
        texts = self._read(kind)
        log = JsonLog(Path(self.file), self._identity(texts))
        if _finished_texts(log) == len(texts):
            return
        log.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.file}.lock"):
            starts = range(_finished_texts(log), len(texts), self.chunk_size)
            if not starts:  # another process built it in the meantime
                return
            model, draws = self.infiller, (self.temperature, self.top_p)
            filler = load_span_filler(model, *draws, device=self.device, dtype=self.dtype)
            paraphrase = self._load_paraphraser()
            parse = None if self.parser is None else load_parser(self.parser)
            with track("labelled pairs", len(texts), done=starts[0]) as progress:
                for start in starts:
                    indices = range(start, min(start + self.chunk_size, len(texts)))
                    with progress.part(len(indices)):
                        pairs = self._make_pairs(texts, indices, filler, paraphrase, parse)
                    log.append({"texts": len(indices), "pairs": list(map(_record, pairs))})

    def _read(self, kind: PairKind) -> list[tuple[str, ...]]:
        if self.passage_words is None:
            count, words = self.count, self.min_words
            return sample_rows(kind, self.texts, self.exclude, count, words, self.seed)
        if KINDS[kind].keys or self.exclude:
            raise ValueError(
                "passage_words are of running text: kind must be 'summary' or 'transfer', without "
                "exclude"
            )
        passages = read_passages(self.texts, self.passage_words, self.count, self.seed)
        return [(" ".join(passage),) for passage in passages]

    def _identity(self, texts: Sequence[tuple[str, ...]]) -> dict[str, Any]:
        """Return the settings that a resumed build must share."""
        settings = {name: value for name, value in asdict(self).items() if name not in _OF_TEXTS}
        content = "\n".join(chain(*texts)).encode()
        return {**settings, "texts": hashlib.sha256(content).hexdigest()}

    def _load_paraphraser(self) -> Paraphrase | None:
        if self.paraphraser is None:
            return None
        model, prompt, count = self.paraphraser, self.paraphraser_prompt, self.paraphrases
        return Paraphraser(model, prompt, self.device, self.dtype, candidates=count)

    def _make_pairs(
        self,
        texts: Sequence[tuple[str, ...]],
        indices: range,
        filler: SpanFiller,
        paraphrase: Paraphrase | None,
        parse: Callable[[str], list[Span]] | None,
    ) -> list[AlignmentPair]:
        """Return the pairs of the texts at the indices. Randomness depends on the first index."""
        digest = hashlib.sha256(f"{self.seed}:{indices.start}".encode()).hexdigest()
        chunk_seed = int(digest[:8], 16)
        random_ = random.Random(chunk_seed)
        example = KINDS[self.kind].example
        examples = [example(texts[i], random_) for i in indices]
        chunk = [text for text, _ in examples]
        if paraphrase:
            paraphrases = [new or text for new, text in zip(paraphrase(chunk), chunk, strict=True)]
        else:
            paraphrases = [edit_lightly(text, random_) for text in chunk]
        spans = [self._mask(text, random_, parse) for text in paraphrases]
        fillings = filler.fill(list(map(as_template, paraphrases, spans)), chunk_seed)
        unrelated = [example(texts[(i + 1) % len(texts)], random_).context for i in indices]
        pairs: list[AlignmentPair] = []
        for i, (text, context), new, other, masked, filling in zip(
            indices, examples, paraphrases, unrelated, spans, fillings, strict=True
        ):
            four = (text, context, new, other)
            pairs += make_pairs(i, four, masked, filling, self.labels, self.extra_pairs)
        return pairs

    def _mask(
        self, text: str, random_: random.Random, parse: Callable[[str], list[Span]] | None
    ) -> tuple[Span, ...]:
        if parse is None:
            return mask_spans(text, random_, self.mask_share, self.max_spans)
        words = [match.span() for match in WORD.finditer(text)]
        return mask_constituents(parse(text), words, random_, self.mask_share, self.max_spans)


def read_pair_file(file: str) -> list[AlignmentPair]:
    """Return the pairs of a file that `PairFile.build` wrote.

    Raises:
        FileNotFoundError: The file does not exist or contains no pairs.
    """
    _, *chunks = JsonLog(Path(file)).read() or [None]
    if not chunks:
        raise FileNotFoundError(f"{file} has no pairs. Build it with `PairFile.build`.")
    return [
        AlignmentPair(
            row["source"], row["a"], row["b"], tuple((s, e) for s, e in row["hallucinated"])
        )
        for chunk in chunks
        for row in chunk["pairs"]
    ]


def _record(pair: AlignmentPair) -> dict[str, Any]:
    # Every word of a pair with fillings has a label.
    return {key: value for key, value in pair._asdict().items() if key != "unknown"}


def _finished_texts(log: JsonLog) -> int:
    return sum(chunk["texts"] for chunk in log.read())


class AlignmentData(pl.LightningDataModule):
    """Labelled pairs of texts, built from plain texts before the first run.

    Args:
        pairs: File of the pairs and the settings it is built with.
        passages: Settings of pairs from running text that are added to them.
        validation_share: Share of the texts whose pairs are used for validation, above 0 and below
            1. Such a text may still occur in training as the unrelated b of another text.
        batch_size: Pairs per batch.
        seed: Seed of the split and of the order.

    Raises:
        ValueError: `validation_share` is out of range.
    """

    def __init__(
        self,
        pairs: PairFile,
        validation_share: float = 0.05,
        batch_size: int = 32,
        seed: int = 0,
        passages: PassagePairs | None = None,
    ) -> None:
        super().__init__()
        if not 0 < validation_share < 1:
            raise ValueError(
                f"validation_share must be between 0 and 1, exclusive, got {validation_share}"
            )
        self.pair_file = pairs
        self.passages = passages
        self.validation_share = validation_share
        self.batch_size = batch_size
        self.seed = seed
        self.splits: dict[str, list[AlignmentPair]] = {}

    def prepare_data(self) -> None:
        """Build or resume the file, in one process per node."""
        self.pair_file.build()

    def setup(self, stage: str) -> None:
        """Read the file and split it by source text."""
        pairs = read_pair_file(self.pair_file.file)
        if self.passages is not None:
            first = 1 + max((pair.source for pair in pairs), default=-1)
            more = self.passages.build()
            pairs += [pair._replace(source=first + pair.source) for pair in more]
        sources = sorted({pair.source for pair in pairs})
        random.Random(self.seed).shuffle(sources)
        count = round(self.validation_share * len(sources))
        validation = set(sources[: max(1, min(count, len(sources) - 1))])
        self.splits["validation"] = [pair for pair in pairs if pair.source in validation]
        self.splits["train"] = [pair for pair in pairs if pair.source not in validation]

    def train_dataloader(self) -> DataLoader[AlignmentPair]:
        """Return batches as lists of pairs, in a new order each epoch."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> DataLoader[AlignmentPair]:
        """Return batches as lists of validation pairs, in a fixed order."""
        return self._loader("validation", shuffle=False)

    def _loader(self, split: str, shuffle: bool) -> DataLoader[AlignmentPair]:
        return DataLoader(
            self.splits[split],  # type: ignore[arg-type]
            self.batch_size,
            shuffle,
            collate_fn=list,
            generator=torch.Generator().manual_seed(self.seed),
        )
