"""CTRLEval against the published procedure: one pattern per row, batches of 8 in the given order.

    python benchmarks/ctrleval.py [--texts 8] [--runs 5] [--reference PATH] [--curve]

Models are a randomly initialised PEGASUS (4 + 4 layers, width 256) with the real vocabulary, and
SmolLM2-135M. SmolLM2-135M is also compared with our engine on one prompt at a time, and with plain
forward passes over as many tokens as the prefix tree of all patterns has. Needs PEGASUS's
tokenizer, tokenizers/pegasus in the folder CTRLREWARD_DATA.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import tempfile
from collections.abc import Sequence
from itertools import accumulate, cycle
from pathlib import Path

import floor
import numpy as np
import published
import torch
from side_by_side import DATA, Work, compare, cost_curve, parse_options, print_header, running_texts
from transformers import AutoTokenizer, PegasusConfig, PegasusForConditionalGeneration

from ctrlreward import Samples
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.tasks import TEXT_SLOT, Continuation, Patterns
from ctrlreward.models.tokenization import characters, read_strings, start_token
from ctrlreward.recipes.data_sets import local_file
from ctrlreward.scorers import CTRLEval
from ctrlreward.scorers.task import Task

SUITE = "ctrleval"
ASPECTS = ("attribute_relevance", "coherence", "consistency")
CAUSAL = "smollm2-135m"
IWF = "ctrleval/iwf_full.txt"
PLAIN_ROW = 128  # tokens per row of the plain forward passes, which have 64 rows


def save_pegasus(folder: str) -> None:
    """Save a randomly initialised PEGASUS with the real tokenizer."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(DATA / "tokenizers" / "pegasus")
    config = PegasusConfig(
        vocab_size=len(tokenizer), d_model=256, encoder_layers=4, decoder_layers=4,
        encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=1024, decoder_ffn_dim=1024, max_position_embeddings=512,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=1,
    )  # fmt: skip
    PegasusForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def rated_texts(count: int) -> Samples:
    """Return the first texts of the paper's sentiment data."""
    with open(local_file("ctrleval/data_senti.txt"), encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:count]
    return Samples(
        texts=[r[2] for r in rows], prefixes=[r[1] for r in rows], labels=[r[0] for r in rows]
    )


def labelled(samples: Samples, labels: Sequence[str]) -> Samples:
    """Return the samples with the given labels in turn."""
    cycled = [label for label, _ in zip(cycle(labels), samples.texts, strict=False)]
    return Samples(texts=samples.texts, prefixes=samples.prefixes, labels=cycled)


def prefixed(texts: list[str], labels: Sequence[str]) -> Samples:
    """Return samples in which the first three words of each text are its prefix."""
    prefixes = [" ".join(text.split()[:3]) for text in texts]
    return labelled(Samples(texts=texts, prefixes=prefixes), labels)


def scoring(scorer: CTRLEval, samples: Samples) -> Work:
    """Return a callable that scores all aspects and concatenates them."""
    scorer.load()

    def work() -> np.ndarray:
        scores = scorer.score(samples)
        return np.concatenate([scores[aspect] for aspect in scorer.aspects])

    return work


def pegasus_rows(folder: str, samples: Samples, runs: int) -> None:
    for task, aspect in (("sentiment", ASPECTS[0]), ("topic", ASPECTS[0]), *(
        ("sentiment", aspect) for aspect in ASPECTS[1:]
    )):  # fmt: skip
        scorer = CTRLEval(folder, task, (aspect,), iwf=local_file(IWF), dtype="float32")
        task_samples = samples if task == "sentiment" else labelled(samples, scorer.labels)
        ours = scoring(scorer, task_samples)
        compare(
            SUITE,
            f"pegasus {aspect}" + " of topic" * (task == "topic"),
            ours,
            lambda s=scorer, a=aspect, t=task_samples: published.by_infilling(s, a, t),
            runs,
            "published procedure",
            floor.unpadded(scorer.loaded_model, ours),
        )


def causal_rows(samples: Samples, runs: int) -> None:
    task = Task.load("sentiment")
    after_text = Task([p for p in task.prompts if p.startswith(TEXT_SLOT)], task.verbalizers)
    scorer = CTRLEval(CAUSAL, after_text, ("attribute_relevance",), dtype="float32")
    ours = scoring(scorer, samples)
    needed = floor.unpadded(scorer.loaded_model, ours)
    for name, peer in (
        ("one pass per prompt", published.prompt_by_prompt),
        ("published procedure", published.by_continuing),
    ):
        compare(
            *(SUITE, f"causal relevance: {name}", ours),
            *(lambda p=peer: p(scorer, samples), runs, name, needed),
        )


def sharing_row(count: int, runs: int) -> None:
    """Compare all aspects of 60-word texts with plain passes over the nodes of the prefix tree."""
    scorer = CTRLEval(CAUSAL, dtype="float32")
    samples = prefixed(running_texts(count, 60), scorer.labels)
    ours = scoring(scorer, samples)
    lm = scorer.loaded_model
    nodes, unshared = prefix_tree_size(lm, recorded_strings(lm, ours))
    with floor.count_cost() as cost:
        ours()
    ids = torch.randint(len(lm.tokenizer), (math.ceil(nodes / PLAIN_ROW), PLAIN_ROW))

    def plain() -> None:
        with torch.inference_mode():
            for rows in ids.split(64):
                lm.model.base_model(input_ids=rows, use_cache=False)

    row = compare(
        *(SUITE, "causal aspects: plain passes", ours, plain, runs),
        *("plain passes over as many tokens", floor.unpadded(lm, ours)),
    )
    record = {
        "suite": SUITE,
        "case": "causal aspects: sharing",
        "tokens_without_sharing": unshared,
        "trie_nodes": nodes,
        "tokens_read": cost.embedded,
        "read_over_nodes": cost.embedded / nodes,
        "time_over_plain": 1 / row.ratio,
    }
    print(
        f"# causal aspects: {cost.embedded} tokens read, {nodes} nodes in the prefix tree "
        f"(×{record['read_over_nodes']:.2f}), {unshared} tokens without sharing; "
        f"time ×{record['time_over_plain']:.2f} of plain passes"
    )
    print(json.dumps(record), flush=True)


def recorded_strings(lm: CausalLM, work: Work) -> list[str]:
    """Return the contexts with their targets that the model scores during the work."""
    recorded: list[str] = []
    original = lm.answer

    def record(tasks: Sequence[Continuation | Patterns]) -> list:
        for task in tasks:
            asked = lm._orders.of(task) if isinstance(task, Patterns) else [(task, ())]
            for (context, targets, _), _ in asked:
                for read, scored in targets:
                    pieces = (*context, *read, *scored)
                    recorded.append(characters(lm.tokenizer, pieces))
        return original(tasks)

    lm.answer = record
    try:
        work()
    finally:
        del lm.answer
    return recorded


def prefix_tree_size(lm: CausalLM, texts: list[str]) -> tuple[int, int]:
    """Return the number of tokens to read with shared prefixes read once, and without sharing."""
    start = start_token(lm.tokenizer)
    inputs = [[*start, *ids][:-1] for ids in read_strings(lm.tokenizer, texts)["input_ids"]]
    nodes = {path for ids in inputs for path in accumulate(ids, lambda path, i: hash((path, i)))}
    return len(nodes), sum(len(ids) for ids in inputs)


def reference_rows(path: Path, folder: str, samples: Samples, runs: int) -> None:
    """Compare with a checkout of CTRLEval, using its prompts, verbalizers and frequencies."""
    module = published.load_reference(path)
    files = [
        path / "iwf_full.txt",
        path / "prompt/prompt_senti.txt",
        path / "prompt/verbal_senti.txt",
    ]
    try:
        reference = module.CTRLEval(*map(str, files), device="cpu", model_name_or_path=folder)
    except (OSError, ImportError, ValueError, TypeError, AttributeError) as error:
        raise SystemExit(
            f"--reference {path} fails with the installed packages: {error}. It was written for "
            "transformers 4: drop --reference, or use an environment with that version"
        ) from error
    task = Task.load("sentiment")
    for short, aspect in zip(("ar", "coh", "cons"), ASPECTS, strict=True):
        scorer = CTRLEval(folder, task, (aspect,), iwf=files[0], dtype="float32")
        # The same sentence splitter on both sides, independent of installed NLTK data.
        module.sent_tokenize = scorer.split
        ours = scoring(scorer, samples)
        compare(
            *(SUITE, f"reference {aspect}", ours),
            lambda a=short: np.array(
                reference.score(a, samples.texts, samples.prefixes, samples.labels, 8)
            ),
            *(runs, "checkout of CTRLEval", floor.unpadded(scorer.loaded_model, ours)),
        )


def curves(folder: str, options: argparse.Namespace) -> None:
    for name, model in (("pegasus", folder), ("causal", CAUSAL)):
        scorer = CTRLEval(
            model, iwf=local_file(IWF) if name == "pegasus" else None, dtype="float32"
        )
        cost_curve(
            *(SUITE, f"{name}, three aspects"),
            lambda texts, s=scorer: scoring(s, prefixed(texts, s.labels)),
            *(options.curve_texts, options.curve_words),
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reference", type=Path, help="also time this checkout of CTRLEval")
    parser.add_argument(
        "--causal-texts", type=int, default=4, help="number of texts for SmolLM2-135M; 0 skips it"
    )


def main() -> None:
    options = parse_options(__doc__, 8, add_options)
    print_header()
    with tempfile.TemporaryDirectory() as folder:
        save_pegasus(folder)
        if options.curve:
            curves(folder, options)
            return
        if options.reference is not None:
            reference_rows(options.reference, folder, rated_texts(options.texts), options.runs)
        pegasus_rows(folder, rated_texts(options.texts), options.runs)
    if options.causal_texts:
        causal_rows(rated_texts(options.causal_texts), options.runs)
        sharing_row(options.causal_texts, options.runs)


if __name__ == "__main__":
    main()
