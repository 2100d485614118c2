"""Labelled training pairs for aligners, built from plain texts without annotation.

As in Deng et al. (2021), https://arxiv.org/abs/2109.06379, section 3.5 and appendix A: a text is
paraphrased, spans of the paraphrase are masked and filled by a model that has not seen the text,
and the words that it filled in are labelled as hallucinated. `PassagePairs` needs no model.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, combinations, groupby
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import networkx
import pytorch_lightning as pl
import torch
from filelock import FileLock
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, GenerationConfig

from ctrlreward.extras import import_extra
from ctrlreward.files import JsonLog
from ctrlreward.models.batching import run_batched
from ctrlreward.models.loading import load_frozen, load_tokenizer
from ctrlreward.models.sentences import split_sentences
from ctrlreward.models.stop_words import ENGLISH_STOP_WORDS
from ctrlreward.models.tokenization import start_token
from ctrlreward.progress import track
from ctrlreward.recipes.text_files import (
    WORD,
    matching_key,
    read_held_out,
    read_lines,
    sample_texts,
    split_off,
)
from ctrlreward.recipes.training_batches import list_batches
from ctrlreward.scorers.alignment import SEPARATOR

Span = tuple[int, int]  # first character, and the one after the last
Fillings = tuple[str, ...]
_MIN_WORDS = 4  # of a text that pairs are made of
Labels: TypeAlias = Literal["words", "fillings"]
Kind: TypeAlias = Literal["transfer", "summary", "reference", "dialog", "dialog_fact"]


class AlignmentPair(NamedTuple):
    """A pair of texts (a, b), labelled with the spans of a that b does not support.

    Attributes:
        source: Index of the text that the pair was made from.
        a: Text whose tokens are labelled.
        b: Text that a is compared with.
        hallucinated: Character spans of a that b does not support.
        unknown: Character spans of a without a label; the rest is aligned.
    """

    source: int
    a: str
    b: str
    hallucinated: tuple[Span, ...]
    unknown: tuple[Span, ...] = ()


# Masking, and the pairs of one text


def mask_spans(
    text: str, random_: random.Random, share: tuple[float, float], max_spans: int
) -> tuple[Span, ...]:
    """Draw runs of words to mask, in order, with at least one word between them.

    The share of masked words and the number of runs are uniform. At least one word is masked and
    one is kept; none is masked of a text of fewer than two words.
    """
    words = [match.span() for match in WORD.finditer(text)]
    masked = min(len(words) - 1, max(1, round(random_.uniform(*share) * len(words))))
    if masked < 1:
        return ()
    runs = min(random_.randint(1, max_spans), masked, len(words) - masked + 1)
    cuts = sorted(random_.sample(range(1, masked), runs - 1))
    sizes = [end - start for start, end in zip([0, *cuts], [*cuts, masked], strict=True)]
    # Kept words before each run. The numbers differ, so that a word lies between two runs.
    kept_before = sorted(random_.sample(range(len(words) - masked + 1), runs))
    spans, masked_before = [], 0
    for kept, size in zip(kept_before, sizes, strict=True):
        first = kept + masked_before
        spans.append((words[first][0], words[first + size - 1][1]))
        masked_before += size
    return tuple(spans)


def parts_of(text: str, spans: Sequence[Span]) -> list[str]:
    """Return the text before, between and after the spans."""
    starts = [0, *(end for _, end in spans)]
    ends = [*(start for start, _ in spans), len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


def refill(text: str, spans: Sequence[Span], fillings: Fillings) -> tuple[str, tuple[Span, ...]]:
    """Return the text with the fillings in place of the spans, and the spans of the fillings."""
    refilled, *parts = parts_of(text, spans)
    places = []
    for filling, part in zip(fillings, parts, strict=True):
        places.append((len(refilled), len(refilled) + len(filling)))
        refilled += filling + part
    return refilled, tuple(places)


def missing_words(text: str, spans: Sequence[Span], others: Sequence[str]) -> tuple[Span, ...]:
    """Return the spans of the words inside `spans` that the other text of each span lacks.

    A filling may repeat a masked word, which then counts as aligned.
    """
    missing = []
    for (start, end), other in zip(spans, others, strict=True):
        known = {word.lower() for word in WORD.findall(other)}
        words = WORD.finditer(text, start, end)
        missing += [match.span() for match in words if match.group().lower() not in known]
    return tuple(missing)


_CONJUNCTION = re.compile(r"\s*(?:,\s*(?:and|but)\b|,|\b(?:and|but)\b)\s+")
_LIGHT_WORDS = {"a", "an", "the", "very", "really", "so", "just", "also", "too", "quite"}


def edit_lightly(text: str, random_: random.Random) -> str:
    """Return a random variant of the text with the same meaning, for use without a paraphraser.

    The two sides of a conjunction ("and", "but", a comma) are swapped, and each light word ("a",
    "the", "very") is dropped, with probability 0.5 each.
    """
    conjunctions = list(_CONJUNCTION.finditer(text))
    if conjunctions and random_.random() < 0.5:
        conjunction = random_.choice(conjunctions)
        body = text.rstrip(" .!?")
        left, right = text[: conjunction.start()], body[conjunction.end() :]
        if left and right:
            text = right + conjunction.group() + left + text[len(body) :]
    words = text.split(" ")
    return " ".join(w for w in words if w.lower() not in _LIGHT_WORDS or random_.random() < 0.5)


def make_pairs(
    source: int,
    texts: tuple[str, str, str, str],
    spans: Sequence[Span],
    fillings: Fillings | None,
    labels: Labels = "words",
    extra_pairs: bool = True,
) -> list[AlignmentPair]:
    """Return all training pairs that are made from one text.

    1. (paraphrase, context): all of it supported.
    2. (refilled paraphrase, context): the pair of the paper.
    3. (paraphrase, refilled paraphrase): the masked words are hallucinated. Without this pair an
       aligner could detect the style of the infiller and ignore b.
    4. (paraphrase, paraphrase without the masked spans): for texts that leave something out.
    5. (text, unrelated context).

    Args:
        source: Index of the text.
        texts: The text, its context, its paraphrase and an unrelated context.
        spans: Masked spans of the paraphrase.
        fillings: One per span; None leaves out pairs 2 and 3.
        labels: What is labelled in pair 2: the `"words"` of a filling that differ from those that
            it replaced, or the `"fillings"` as a whole, as in the paper.
        extra_pairs: Whether to make the pairs that the paper lacks, all but 2.
    """
    text, context, paraphrase, unrelated = texts
    masked = [paraphrase[start:end] for start, end in spans]
    pairs = [AlignmentPair(source, paraphrase, context, ())] if extra_pairs else []
    if fillings is not None:
        refilled, places = refill(paraphrase, spans, fillings)
        wrong = missing_words(refilled, places, masked)
        if labels == "fillings":  # all of a filling that differs from what it replaced
            rows = zip(places, fillings, masked, strict=True)
            wrong = tuple(s for s, new, old in rows if new.strip().lower() != old.strip().lower())
        pairs.append(AlignmentPair(source, refilled, context, wrong))
        if extra_pairs:
            lost = missing_words(paraphrase, spans, fillings)
            pairs.append(AlignmentPair(source, paraphrase, refilled, lost))
    if extra_pairs:
        shorter = " ".join("".join(parts_of(paraphrase, spans)).split())
        left_out = missing_words(paraphrase, spans, [shorter] * len(spans))
        pairs.append(AlignmentPair(source, paraphrase, shorter, left_out))
        not_shared = missing_words(text, [(0, len(text))], [unrelated])
        pairs.append(AlignmentPair(source, text, unrelated, not_shared))
    return pairs


# Kinds of pairs (appendix A): which text is altered, and what supports it


def textrank(document: str, count: int) -> str:
    """Return the sentences of a document with the highest TextRank, in their order.

    Mihalcea and Tarau (2004), https://aclanthology.org/W04-3252: PageRank of the sentences, linked
    by their common words over the sum of the logarithms of their lengths, without stop words.
    """
    sentences = split_sentences(document)
    words = [{*WORD.findall(sentence.lower())} - {*ENGLISH_STOP_WORDS} for sentence in sentences]
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(sentences)))
    for i, j in combinations(range(len(sentences)), 2):
        if common := len(words[i] & words[j]):
            # The logarithms of two sentences of one word sum to 0.
            length = max(math.log(len(words[i])) + math.log(len(words[j])), math.log(2))
            graph.add_edge(i, j, weight=common / length)
    ranks = networkx.pagerank(graph)
    best = sorted(sorted(ranks, key=lambda i: -ranks[i])[:count])
    return " ".join(sentences[i] for i in best)


def _facts(context: str, random_: random.Random) -> str:
    facts = [fact for line in context.splitlines() for fact in split_sentences(line)]
    count = min(random_.randint(1, 3), len(facts))
    return " ".join(facts[i] for i in sorted(random_.sample(range(len(facts)), count)))


Example: TypeAlias = Callable[[Sequence[str], random.Random], tuple[str, str]]

# Keys of a record, the altered text's first, none for a text per row; and a function from their
# values to the altered text and what supports all of it. The released aligners of a task are
# trained on one kind each.
KINDS: Mapping[Kind, tuple[tuple[str, ...], Example]] = {
    "transfer": ((), lambda row, _: (row[0], row[0])),
    "summary": ((), lambda row, draw: (textrank(row[0], draw.randint(1, 3)), row[0])),
    "reference": (("reference",), lambda row, _: (row[0], row[0])),
    "dialog": (("text", "context", "history"), lambda row, _: (row[0], SEPARATOR.join(row[1:]))),
    "dialog_fact": (("context",), lambda row, draw: (_facts(row[0], draw), row[0])),
}


def sample_rows(
    kind: Kind, files: Sequence[str], exclude: Sequence[str], count: int, seed: int
) -> list[tuple[str, ...]]:
    """Draw distinct rows from files: texts, or the values at the keys of the kind.

    The first text of a row has four words or more, and none is in the excluded files. A ValueError
    if there are fewer than `count` such rows.
    """
    keys, _ = KINDS[kind]
    if not keys:
        texts = sample_texts(files, exclude, count, (_MIN_WORDS, None), seed)
        return [(text,) for text in texts]
    held_out = read_held_out(exclude)
    rows: dict[tuple[str, ...], None] = {}
    for line in read_lines(files):
        record = json.loads(line)
        row = tuple(record[key] for key in keys)
        enough = len(WORD.findall(row[0])) >= _MIN_WORDS
        if enough and not any(matching_key(value) in held_out for value in row):
            rows[row] = None
    if len(rows) < count:
        raise ValueError(f"{', '.join(files)}: {len(rows)} usable records, fewer than {count}")
    return random.Random(seed).sample([*rows], count)


# Passages of running text, and pairs of a few sentences with the rest of their passage

_NAME = r"[A-Z]\w*(?:['’\-]\w+)*"
# Marks of WikiText, in the order of their normalization, and apostrophes that begin a word: 'em,
# 'tis, 'twas, 's.
_CLITIC = r"(?:[Ee]m|[Tt]is|[Tt]w\w+|[Uu]n|[Uu]d|ll|s|d|re|ve|m)\b"
_MARKS = [
    (re.compile(r" ?@([-,.])@ ?"), r"\1"),
    (re.compile(r"[“”]|``|''"), '"'),
    (re.compile(r"[‘’]"), "'"),
    (re.compile(r"--+|[–—]"), " - "),
    (re.compile(r"\s+"), " "),
    (re.compile(r"(?<!\S)\" ([^\"]*) \"(?!\S)"), r'"\1"'),
    (re.compile(r" ([.,!?;:])(?![^\s\"])"), r"\1"),
    # Single quotation marks, but neither apostrophes nor clitics.
    (re.compile(r"(?<=[.,!?;:…-])'(?!\w)"), '"'),
    (re.compile(rf"(?<![\w'])'(?!{_CLITIC})(?=\w)"), '"'),
]

# Units of replacement: names in a row, a number, or a word.
_UNIT = re.compile(rf"{_NAME}(?: {_NAME})*|\d[\d,.]*\d|{WORD.pattern}")


def plain_marks(text: str) -> str:
    """Return a paragraph of WikiText with plain quotation marks, dashes and spaces."""
    for pattern, replacement in _MARKS:
        text = pattern.sub(replacement, text)
    return text.strip()


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of running text between empty lines and headings (`= title =`)."""
    lines = (line.strip() for line in re.sub(r"\s*<unk>", "", text).split("\n"))
    for breaks, group in groupby(lines, lambda line: not line or line[0] == line[-1] == "="):
        paragraph = "" if breaks else plain_marks(" ".join(group))
        if paragraph:
            yield paragraph


def read_passages(
    files: Sequence[str], words: tuple[int, int], count: int, seed: int
) -> list[list[str]]:
    """Return passages of running text, such as WikiText, as their sentences; none overlaps another.

    A passage ends at the end of its paragraph, or at a number of `words` that is drawn for it; a
    ValueError if there are fewer than `count`.
    """
    random_ = random.Random(seed)
    passages: list[list[str]] = []
    for file in files:
        for paragraph in paragraphs("".join(read_lines([file]))):
            passage: list[str] = []
            length, longest = 0, random_.randint(*words)
            for sentence in split_sentences(paragraph):
                size = len(WORD.findall(sentence))
                if length + size > longest:
                    if length >= words[0]:
                        passages.append(passage)
                    passage, length, longest = [], 0, random_.randint(*words)
                passage.append(sentence)
                length += size
            if words[0] <= length <= words[1]:
                passages.append(passage)
    if len(passages) < count:
        raise ValueError(f"{', '.join(files)}: {len(passages)} passages, fewer than {count}")
    return random_.sample(passages, count)


@dataclass(frozen=True)
class PassagePairs:
    """Pairs of one or two sentences and their passage.

    In half of the pairs the context lacks the sentences: content words that it contains are
    supported, names and numbers that it lacks are hallucinated, and the other words have no label.
    In the other half it contains them, and they are edited lightly. In both, content words that the
    context supports are then replaced by others of the same form, from other passages.

    Args:
        texts: Files of running text, as `read_passages` reads them.
        count: Number of passages, one pair each.
        words: Smallest and largest number of words of a passage.
        replaced: Smallest and largest share of the supported content words that are replaced.
        lower: Share of the pairs in lower case.
        seed: Seed of all choices; equal settings give equal pairs.
    """

    texts: list[str]
    count: int
    words: tuple[int, int] = (80, 260)
    replaced: tuple[float, float] = (0.0, 0.5)
    lower: float = 0.0
    seed: int = 0

    def build(self) -> list[AlignmentPair]:
        """Return the pairs; a ValueError if the files contain fewer passages than `count`."""
        passages = read_passages(self.texts, self.words, self.count, self.seed)
        random_ = random.Random(self.seed)
        pool = unit_pool(chain.from_iterable(passages))
        return [self._pair(i, passage, pool, random_) for i, passage in enumerate(passages)]

    def _pair(
        self, source: int, passage: list[str], pool: Mapping[str, list[str]], random_: random.Random
    ) -> AlignmentPair:
        size = min(random_.randint(1, 2), max(1, len(passage) - 1))
        first = random_.randint(0, len(passage) - size)
        text = " ".join(passage[first : first + size])
        others = passage[:first] + passage[first + size :]
        held_out = random_.random() < 0.5 and bool(others)
        if not held_out:
            text = edit_lightly(text, random_)
        context = " ".join(others if held_out else passage)
        share = random_.uniform(*self.replaced)
        text, wrong, absent, function = replace_units(text, context, pool, share, random_)
        unknown: tuple[Span, ...] = ()
        if held_out:  # the passage may say the rest in other words
            unknown = (*function, *(span for span in absent if not _is_name(text, span)))
            absent = tuple(span for span in absent if _is_name(text, span))
        if random_.random() < self.lower and len(text.lower()) == len(text):
            text, context = text.lower(), context.lower()
        return AlignmentPair(source, text, context, wrong + absent, unknown)


def unit_pool(sentences: Iterable[str]) -> dict[str, list[str]]:
    """Return the distinct names, numbers and content words of sentences, by form.

    A sentence's first word is left out: its capital says nothing.
    """
    pool: dict[str, dict[str, None]] = defaultdict(dict)
    for sentence in sentences:
        for match in _UNIT.finditer(sentence):
            unit = match.group()
            if match.start() and unit.lower() not in ENGLISH_STOP_WORDS:
                pool[unit_form(unit)][unit] = None
    return {form: list(units) for form, units in pool.items()}


def unit_form(unit: str) -> str:
    """Return the form by which a name, number or word is replaced by another."""
    if unit[0].isdigit():
        return "year" if re.fullmatch(r"1\d{3}|20\d\d", unit) else "number"
    endings = ("ing", "ed", "ly", "s")
    ending = next((ending for ending in endings if unit.endswith(ending)), "word")
    return "name" if unit[0].isupper() else ending


def replace_units(
    text: str,
    context: str,
    pool: Mapping[str, Sequence[str]],
    share: float,
    random_: random.Random,
) -> tuple[str, tuple[Span, ...], tuple[Span, ...], tuple[Span, ...]]:
    """Replace a share of the names, numbers and content words that the context has by others.

    Returns the text, and the spans of the words that were put in, of the text's own content words
    that the context lacks, and of its function words. `pool` has the others by form.
    """
    known = {stem(word) for word in WORD.findall(context)}
    put_in: list[Span] = []
    absent: list[Span] = []
    function: list[Span] = []
    new, end = "", 0
    for match in _UNIT.finditer(text):
        new += text[end : match.start()]
        unit, end = match.group(), match.end()
        lacking = _lacking(unit, known, len(new))
        if unit.lower() in ENGLISH_STOP_WORDS:
            function.append((len(new), len(new) + len(unit)))
        elif not lacking and match.start() and random_.random() < share:
            candidates = pool.get(unit_form(unit), ())
            for _ in range(20 if candidates else 0):
                drawn = random_.choice(candidates)
                if len(_lacking(drawn, known, 0)) == len(WORD.findall(drawn)):
                    unit = drawn
                    break
            put_in += _lacking(unit, known, len(new))
        else:
            absent += lacking
        new += unit
    return new + text[end:], tuple(put_in), tuple(absent), tuple(function)


def _lacking(unit: str, known: set[str], start: int) -> list[Span]:
    """Return the spans of the words of a unit that are not known, where it begins at `start`."""
    words = (match for match in WORD.finditer(unit) if stem(match.group()) not in known)
    return [(start + match.start(), start + match.end()) for match in words]


def _is_name(text: str, span: Span) -> bool:
    """Return whether a word has a digit, or a capital that no start of a sentence explains."""
    word, before = text[span[0] : span[1]], text[: span[0]].rstrip("\"'“‘( ")
    first = not before or before[-1] in ".!?:"
    return any(map(str.isdigit, word)) or (word[0].isupper() and not first)


def stem(word: str) -> str:
    """Return a word without capitals, possessive and a common ending, to match its other forms."""
    word = re.sub(r"['’]s?$", "", word.lower())
    for ending in ("ing", "ies", "es", "ed", "ly", "s", "e", "y"):
        if len(word) - len(ending) >= 3 and word.endswith(ending):
            return word.removesuffix(ending)
    return word


# Fillings and paraphrases of models


class SpanFiller:
    """A frozen decoder-only model that fills spans of texts without having seen them.

    The text after a span comes first in the prompt, and the text before it is continued. The model
    does not know where to stop, so a filling has as many words as the span, give or take one. Spans
    are filled from left to right; each sees those before it.
    """

    def __init__(
        self, model: str, device: str, dtype: str | None, temperature: float, top_p: float
    ) -> None:
        self.model = load_frozen(AutoModelForCausalLM, model, device, dtype)
        self.tokenizer = load_tokenizer(model)
        self.options: GenerationConfig = copy.deepcopy(self.model.generation_config)
        sampling = {"do_sample": True, "num_beams": 1, "top_k": 0, "num_return_sequences": 1}
        self.options.update(temperature=temperature, top_p=top_p, **sampling)
        self.options.pad_token_id = self.tokenizer.pad_token_id or 0

    def fill(
        self, texts: Sequence[str], spans: Sequence[Sequence[Span]], seed: int
    ) -> list[Fillings | None]:
        """Return one filling per span of each text, None for a text where the model gave none.

        Equal arguments give equal fillings.
        """
        lengths = random.Random(seed)
        filled: list[list[str]] = [[] for _ in texts]
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for k in range(max(map(len, spans), default=0)):
                rows = [i for i, own in enumerate(spans) if len(own) > k and all(filled[i])]
                sizes, prompts = [], []
                for i in rows:
                    start, end = spans[i][k]
                    size = len(WORD.findall(texts[i][start:end]))
                    sizes.append(max(1, size + lengths.choice((-1, 0, 0, 1))))
                    parts = parts_of(texts[i], spans[i])
                    left = parts[0] + "".join(map("".join, zip(filled[i], parts[1:], strict=False)))
                    right = parts[k + 1].strip()
                    right = f"{right}\n\n" if re.search(r"\w", right) else ""
                    prompts.append(right + left.rstrip())
                # Enough tokens for most runs of as many words.
                outputs = self.complete(prompts, [3 * size // 2 + 2 for size in sizes])
                for i, prompt, output, size in zip(rows, prompts, outputs, sizes, strict=True):
                    extends = re.fullmatch(r"\w\w", prompt[-1:] + output[:1])  # the prompt's word
                    line = "" if extends else output.lstrip(" ").split("\n", 1)[0]
                    filled[i].append(" ".join(line.split()[:size]))
        return [tuple(row) if all(row) else None for row in filled]

    def complete(self, prompts: Sequence[str], new_tokens: Sequence[int]) -> list[str]:
        """Continue each prompt, as the start of a document."""
        start, encode = start_token(self.tokenizer), self.tokenizer
        rows = [[*start, *encode(text, add_special_tokens=False).input_ids] for text in prompts]

        def forward(batch: list[int]) -> list[str]:
            return self._generate([rows[i] for i in batch], max(new_tokens[i] for i in batch))

        return run_batched([len(row) for row in rows], 2048, forward)

    def _generate(self, rows: Sequence[list[int]], new_tokens: int) -> list[str]:
        """Return the completion of each row; completions need the padding on the left."""
        read = partial(self.tokenizer.decode, skip_special_tokens=True)
        pad = partial(pad_sequence, batch_first=True, padding_side="left")
        ids = [torch.tensor(row, device=self.model.device) for row in rows]
        self.options.max_new_tokens = new_tokens
        outputs = self.model.generate(  # type: ignore[operator]  # the type says Tensor | Module
            input_ids=pad(ids, padding_value=self.options.pad_token_id),
            attention_mask=pad([torch.ones_like(row) for row in ids]),
            generation_config=self.options,
        )
        completions = outputs[:, max(map(len, rows)) :].tolist()
        # With the prompt: alone, some tokenizers drop the first space of a completion.
        return [
            str(read(row + new))[len(read(row)) :]
            for row, new in zip(rows, completions, strict=True)
        ]


class Paraphraser:
    """A frozen encoder-decoder that paraphrases texts by beam search, with candidates each."""

    def __init__(self, model: str, device: str, dtype: str | None, candidates: int) -> None:
        self.model = load_frozen(AutoModelForSeq2SeqLM, model, device, dtype)
        self.tokenizer = load_tokenizer(model)
        self.candidates = candidates

    def __call__(self, text: str) -> str:
        """Return the paraphrase that is farthest from the text, which may be empty."""
        inputs = self.tokenizer(text, return_tensors="pt", truncation=True).to(self.model.device)
        outputs = self.model.generate(  # type: ignore[operator]
            **inputs,
            do_sample=False,
            num_beams=max(4, self.candidates),
            num_return_sequences=self.candidates,
            max_new_tokens=2 * inputs.input_ids.shape[1],
        )
        written = self.tokenizer.batch_decode(outputs, skip_special_tokens=True)
        return farthest(text, [paraphrase.strip() for paraphrase in written])


def farthest(text: str, paraphrases: Sequence[str]) -> str:
    """Return the paraphrase with the largest edit distance from a text, over words."""
    if len(paraphrases) == 1:
        return paraphrases[0]
    distance = import_extra("nltk.metrics.distance", "paraphrases").edit_distance
    return max(paraphrases, key=lambda paraphrase: distance(text.split(), paraphrase.split()))


# The file of pairs, and its data module


@dataclass(frozen=True)
class PairFile:
    """A file of training pairs and the settings it is built with.

    JSON Lines: the settings, then a line per chunk of texts, `{"texts": 128, "pairs": [{"source":
    0, "a": …, "b": …, "hallucinated": [[4, 9]]}, …]}`. A file whose build was interrupted is
    resumed, and then equals one that was built in a single run.

    Args:
        file: Path of the file.
        texts: Files of one text per line, or of JSON records for a kind with keys (`KINDS`).
        count: Number of texts to use, 2 or more: each text has another as its unrelated text.
        exclude: Files of texts that are not used.
        infiller: Decoder-only model that fills masked spans.
        paraphraser: Encoder-decoder that paraphrases texts; None edits them lightly instead.
        mask_share: Smallest and largest share of a text's words to mask.
        max_spans: Largest number of masked spans, 1 or more.
        temperature: Sampling temperature of the fillings.
        top_p: Total probability of the most likely tokens that fillings are sampled from.
        passage_words: Smallest and largest number of words of a passage, if the files are running
            text, read by `read_passages`; None reads a text per line.
        device: Device of the models.
        dtype: Dtype of the models; None picks by device.
        seed: Seed of the choice of texts, of masking and of filling.
        chunk_size: Texts per line of the file, and per seed.
        kind: Which text is altered and what supports it, a key of `KINDS`.
        paraphrases: Number of paraphrases, of which the farthest is taken; the paper's is 10.
        labels: See `make_pairs`; the paper's is `"fillings"`.
        extra_pairs: See `make_pairs`; the paper has none.
    """

    file: str
    texts: list[str]
    count: int
    exclude: Sequence[str] = ()
    infiller: str = "smollm2-135m"
    paraphraser: str | None = None
    mask_share: tuple[float, float] = (0.15, 0.5)
    max_spans: int = 2
    temperature: float = 1.0
    top_p: float = 0.95
    passage_words: tuple[int, int] | None = None
    device: str = "cpu"
    dtype: str | None = None
    seed: int = 0
    chunk_size: int = 128
    kind: Kind = "transfer"
    paraphrases: int = 1
    labels: Labels = "words"
    extra_pairs: bool = True

    def build(self) -> None:
        """Build the file, or resume it. A second process that builds the same file waits."""
        if self.passage_words is None:
            texts = sample_rows(self.kind, self.texts, self.exclude, self.count, self.seed)
        else:
            passages = read_passages(self.texts, self.passage_words, self.count, self.seed)
            texts = [(" ".join(passage),) for passage in passages]
        # Some settings show in the texts, or do not change the pairs.
        others = "file texts count exclude passage_words device".split()
        identity = {name: value for name, value in asdict(self).items() if name not in others}
        identity["texts"] = hashlib.sha256("\n".join(chain(*texts)).encode()).hexdigest()
        pairs = JsonLog(Path(self.file), identity)
        pairs.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.file}.lock"):
            done = sum(chunk["texts"] for chunk in pairs.read())
            if done == len(texts):
                return
            make = self._maker()
            with track("labelled pairs", len(texts), done=done) as advance:
                for start in range(done, len(texts), self.chunk_size):
                    rows = range(start, min(start + self.chunk_size, len(texts)))
                    made = [pair._asdict() for pair in make(texts, rows)]
                    for record in made:
                        del record["unknown"]  # every word of a pair with fillings has a label
                    pairs.append({"texts": len(rows), "pairs": made})
                    advance(len(rows))

    def _maker(self) -> Callable[[Sequence[tuple[str, ...]], range], Iterator[AlignmentPair]]:
        """Load the models, and return a function from texts and a chunk of them to its pairs."""
        models = self.device, self.dtype
        filler = SpanFiller(self.infiller, *models, self.temperature, self.top_p)
        paraphrase = None
        if self.paraphraser is not None:
            paraphrase = Paraphraser(self.paraphraser, *models, self.paraphrases)
        _, example = KINDS[self.kind]

        def make(texts: Sequence[tuple[str, ...]], rows: range) -> Iterator[AlignmentPair]:
            digest = hashlib.sha256(f"{self.seed}:{rows.start}".encode()).hexdigest()
            chunk_seed = int(digest[:8], 16)
            random_ = random.Random(chunk_seed)
            examples = [example(texts[i], random_) for i in rows]
            if paraphrase is None:
                new = [edit_lightly(text, random_) for text, _ in examples]
            else:
                new = [paraphrase(text) or text for text, _ in examples]
            spans = [mask_spans(text, random_, self.mask_share, self.max_spans) for text in new]
            fillings = filler.fill(new, spans, chunk_seed)
            unrelated = [example(texts[(i + 1) % len(texts)], random_)[1] for i in rows]
            for k, i in enumerate(rows):
                four = (*examples[k], new[k], unrelated[k])
                options = (self.labels, self.extra_pairs)
                yield from make_pairs(i, four, spans[k], fillings[k], *options)

        return make


def read_pair_file(file: str) -> list[AlignmentPair]:
    """Return the pairs of a file that `PairFile.build` wrote."""
    _, *chunks = JsonLog(Path(file)).read()
    rows = [row for chunk in chunks for row in chunk["pairs"]]
    spans = [tuple((start, end) for start, end in row["hallucinated"]) for row in rows]
    return [AlignmentPair(r["source"], r["a"], r["b"], s) for r, s in zip(rows, spans, strict=True)]


class AlignmentData(pl.LightningDataModule):
    """Labelled pairs of texts, built from plain texts before the first run.

    Args:
        pairs: File of the pairs and the settings it is built with.
        validation_share: Share of the texts whose pairs are used for validation, above 0 and below
            1. Such a text may still occur in training as the unrelated b of another text.
        batch_size: Pairs per batch.
        seed: Seed of the split and of the order.
        passages: Settings of pairs from running text that are added to them.
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
        self.pair_file, self.passages = pairs, passages
        self.validation_share, self.batch_size, self.seed = validation_share, batch_size, seed
        self.splits: dict[str, list[AlignmentPair]] = {}

    def prepare_data(self) -> None:
        self.pair_file.build()

    def setup(self, stage: str) -> None:
        pairs = read_pair_file(self.pair_file.file)
        if self.passages is not None:
            first = 1 + max((pair.source for pair in pairs), default=-1)
            more = self.passages.build()
            pairs += [pair._replace(source=first + pair.source) for pair in more]
        sources = sorted({pair.source for pair in pairs})
        files = self.pair_file.texts
        held_out = {*split_off(sources, self.validation_share, self.seed, files)[1]}
        self.splits["validation"] = [pair for pair in pairs if pair.source in held_out]
        self.splits["train"] = [pair for pair in pairs if pair.source not in held_out]

    def train_dataloader(self) -> DataLoader[AlignmentPair]:
        return list_batches(self.splits["train"], self.batch_size, self.seed)

    def val_dataloader(self) -> DataLoader[AlignmentPair]:
        return list_batches(self.splits["validation"], self.batch_size, self.seed, shuffle=False)
