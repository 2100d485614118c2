"""Command `ctrlreward iwf`: inverse word frequencies of a corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from glob import glob
from pathlib import Path

from ctrlreward.command_line.parser import command_parser
from ctrlreward.command_line.terminal import user_errors
from ctrlreward.models.frequency import InverseFrequency
from ctrlreward.progress import track
from ctrlreward.tables.parsing import decode_utf8
from ctrlreward.text.sentences import find_splitter
from ctrlreward.weights.loading import load_tokenizer

_DESCRIPTION = """Compute inverse word frequencies, the weights of CTRLEval's coherence and
consistency, from a corpus. Writes one weight per line, in the order of the model's
token ids, as in the published table."""

_EXAMPLES = (
    "ctrlreward iwf corpus.txt iwf.txt --model smollm2-135m",
    "ctrlreward score texts.jsonl scored.csv --scorers CTRLEval --scorers.iwf=iwf.txt",
)

MEGABYTE = 10**6


def run(arguments: list[str]) -> None:
    """Count a corpus and write the table."""
    usage = "CORPUS OUTPUT [options]"
    parser = command_parser("ctrlreward iwf", usage, _DESCRIPTION, _EXAMPLES)
    parser.add_function_arguments(write_table, as_group=False, as_positional=True)
    options = parser.parse_args(arguments)
    with user_errors():
        write_table(**options)


def write_table(
    corpus: str,
    output: Path,
    model: str = "smollm2-135m",
    sentence_splitter: str | None = None,
) -> None:
    """Write the inverse frequencies of a model's tokens in a corpus.

    The weight of a token is log(1 + |C|) / f_w, with |C| sentences in the corpus, f_w of which
    contain the token; 0 if none does. The table fits the tokenizer that it was made with:
    `CTRLEval(model=MODEL, iwf=OUTPUT)`. The corpus is read line by line, so it may be larger than
    memory.

    Args:
        corpus: A UTF-8 text file, or a quoted pattern that matches several ("corpus/*.txt"). Each
            line is a sentence, a paragraph or a document; join wrapped lines first.
        output: The file to write.
        model: Scoring model: a local folder, Hugging Face id or short name.
        sentence_splitter: Sentence splitter: 'rules' (the default), 'sentencex' or 'nltk'.
    """
    paths = _matching_files(corpus)
    if not output.parent.is_dir():
        raise ValueError(
            f"output = {output}: the folder {output.parent} does not exist. Create it."
        )
    sentences = read_sentences(paths, find_splitter(sentence_splitter))
    table = InverseFrequency.from_corpus(sentences, load_tokenizer(model))
    table.save(output)
    seen = int((table.weights > 0).sum())
    print(f"{output}: {len(table.weights)} tokens, {seen} of them in the corpus")


def read_sentences(paths: Sequence[Path], split: Callable[[str], list[str]]) -> Iterator[str]:
    """Yield the sentences of UTF-8 files line by line, and show the progress."""
    total = sum(path.stat().st_size for path in paths) / MEGABYTE
    with track("counting", total, "MB") as advance:
        for path in paths:
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    yield from split(decode_utf8(line, path, number).strip())
                    advance(len(line) / MEGABYTE)


def _matching_files(corpus: str) -> list[Path]:
    """Return the file of this name, or the files that match it as a pattern, sorted by name."""
    if Path(corpus).is_file():
        return [Path(corpus)]
    paths = [Path(name) for name in sorted(glob(corpus, recursive=True)) if Path(name).is_file()]
    if not paths:
        raise ValueError(
            f"corpus = {corpus!r} matches no file, must be a text file, or a quoted pattern such "
            'as "corpus/*.txt"'
        )
    return paths
