"""`ctrlreward iwf`: counts a corpus into a table of inverse word frequencies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from glob import glob
from pathlib import Path

from jsonargparse import ArgumentParser
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from ctrlreward.commands.formats.parsing import decode
from ctrlreward.commands.terminal import user_errors
from ctrlreward.engine.batching import shows_progress
from ctrlreward.models.frequency import InverseFrequency
from ctrlreward.text.sentences import sentence_splitter as find_splitter
from ctrlreward.weights.loading import load_tokenizer

_DESCRIPTION = """Counts in how many sentences of a corpus each token of a model occurs, and writes
the inverse frequencies, one weight per token id per line, as the published table has them."""


def iwf(
    corpus: str,
    output: Path,
    model: str = "smollm2-135m",
    sentence_splitter: str | None = None,
) -> None:
    """Counts a corpus into the weights of CTRLEval's coherence and consistency.

    A token's weight is the inverse frequency of the sentences that hold it. The table has one
    weight per token id per line, as the published one, and fits the tokenizer that it was made
    with: `CTRLEval(model=MODEL, iwf=OUTPUT)`. The corpus is read line by line and may be larger
    than memory.

    Args:
        corpus: A text file in UTF-8, or a quoted pattern that matches several ("corpus/*.txt").
            Each line is a sentence, a paragraph or a document: lines of wrapped text have to be
            joined first.
        output: The file to write.
        model: Local folder, hub id or short name of the scoring model.
        sentence_splitter: How lines are split into sentences: 'rules' (the default), 'sentencex'
            or 'nltk'.

    Raises:
        ValueError: No file matches, one is no UTF-8 text, there is no sentence, the output's
            folder does not exist, or the splitter is unknown.
    """
    paths = _files(corpus)
    if not output.parent.is_dir():
        raise ValueError(f"output = {output}: there is no folder {output.parent}, make it first")
    sentences = read_sentences(paths, find_splitter(sentence_splitter))
    table = InverseFrequency.from_corpus(sentences, load_tokenizer(model))
    table.save(output)
    seen = int((table.weights > 0).sum())
    print(f"{output}: {len(table.weights)} tokens, {seen} of them found")


def read_sentences(paths: Sequence[Path], split: Callable[[str], list[str]]) -> Iterator[str]:
    """The sentences of text files, a line at a time, with a progress bar at a terminal.

    Args:
        paths: Files in UTF-8.
        split: One line into sentences.

    Raises:
        ValueError: A file is no UTF-8 text.
    """
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not shows_progress(),
    ) as bar:
        task = bar.add_task("counting", total=sum(path.stat().st_size for path in paths))
        for path in paths:
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    yield from split(decode(line, path, number).strip())
                    bar.advance(task, len(line))


def _files(corpus: str) -> list[Path]:
    """The file of this name, or those that the pattern matches, in order of their names."""
    if Path(corpus).is_file():
        return [Path(corpus)]
    paths = [Path(name) for name in sorted(glob(corpus, recursive=True)) if Path(name).is_file()]
    if not paths:
        raise ValueError(
            f"corpus = {corpus!r} is no file and no pattern that matches one: give a text file, "
            'or a quoted pattern such as "corpus/*.txt"'
        )
    return paths


def run(arguments: list[str]) -> None:
    """Runs the command."""
    parser = ArgumentParser(prog="ctrlreward iwf", description=_DESCRIPTION)
    parser.add_function_arguments(iwf, as_positional=True)
    options = parser.parse_args(arguments)
    with user_errors(parser):
        iwf(**options)
