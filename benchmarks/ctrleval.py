"""CTRLEval against the published procedure: one pattern a row, batches of 8, the given order.

    python benchmarks/ctrleval.py [--texts 8] [--runs 5] [--reference PATH] [--compiled] [--curve]

A seeded PEGASUS (4 + 4 layers, width 256) with the real vocabulary, and SmolLM2-135M, for which
two more peers stand: our engine asked for one prompt at a time, and plain forward passes over as
many tokens as the patterns have when each shared beginning counts once. Needs the data folder
(CTRLREWARD_DATA) for tokenizer, texts and word frequencies.
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
from side_by_side import DATA, Work, compare, cost_curve, header, options, running_texts
from transformers import AutoTokenizer, PegasusConfig, PegasusForConditionalGeneration

from ctrlreward import Samples
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.tasks import Continuation
from ctrlreward.models.tokenization import start_token
from ctrlreward.scorers import CTRLEval
from ctrlreward.scorers.task import TEXT_SLOT, Task

SUITE = "ctrleval"
ASPECTS = ("attribute_relevance", "coherence", "consistency")
CAUSAL = "smollm2-135m"
IWF = DATA / "ctrleval" / "iwf_full.txt"
PLAIN_ROW = 128  # tokens of a row of the plain passes, 64 rows a pass


def seeded_pegasus(folder: str) -> None:
    """Saves a model with random weights and the real tokenizer."""
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
    """The first texts of the paper's sentiment data."""
    with open(DATA / "ctrleval" / "data_senti.txt", encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:count]
    return Samples(
        texts=[r[2] for r in rows], prefixes=[r[1] for r in rows], labels=[r[0] for r in rows]
    )


def labelled(samples: Samples, labels: Sequence[str]) -> Samples:
    """The same texts, each with the next of the labels."""
    own = [label for label, _ in zip(cycle(labels), samples.texts, strict=False)]
    return Samples(texts=samples.texts, prefixes=samples.prefixes, labels=own)


def made_of(texts: list[str], labels: Sequence[str]) -> Samples:
    """Running texts, of which the first three words are the prefix."""
    prefixes = [" ".join(text.split()[:3]) for text in texts]
    return labelled(Samples(texts=texts, prefixes=prefixes), labels)


def scoring(scorer: CTRLEval, samples: Samples) -> Work:
    """All of a scorer's aspects, one after the other."""
    scorer.load()

    def work() -> np.ndarray:
        scores = scorer.score(samples)
        return np.concatenate([scores[aspect] for aspect in scorer.aspects])

    return work


def pegasus_rows(folder: str, samples: Samples, runs: int) -> None:
    for task, aspect in (("sentiment", ASPECTS[0]), ("topic", ASPECTS[0]), *(
        ("sentiment", aspect) for aspect in ASPECTS[1:]
    )):  # fmt: skip
        scorer = CTRLEval(folder, task, (aspect,), iwf=IWF, dtype="float32")
        own = samples if task == "sentiment" else labelled(samples, scorer.labels)
        ours = scoring(scorer, own)
        compare(
            SUITE,
            f"pegasus {aspect}" + " of topic" * (task == "topic"),
            ours,
            lambda s=scorer, a=aspect, o=own: published.by_infilling(s, a, o),
            runs,
            "published procedure",
            floor.unpadded(scorer.infiller, ours),
        )


def causal_rows(samples: Samples, runs: int) -> None:
    task = Task.load("sentiment")
    behind = Task([p for p in task.prompts if p.startswith(TEXT_SLOT)], task.verbalizers)
    scorer = CTRLEval(CAUSAL, behind, ("attribute_relevance",), dtype="float32")
    ours = scoring(scorer, samples)
    needed = floor.unpadded(scorer.infiller.lm, ours)
    for name, peer in (
        ("a pass a prompt", published.prompt_by_prompt),
        ("published procedure", published.by_continuing),
    ):
        compare(
            *(SUITE, f"causal relevance: {name}", ours),
            *(lambda p=peer: p(scorer, samples), runs, name, needed),
        )


def sharing_row(count: int, runs: int) -> None:
    """All aspects of 60-word texts: what goes through the model over what sharing allows."""
    scorer = CTRLEval(CAUSAL, dtype="float32")
    samples = made_of(running_texts(count, 60), scorer.labels)
    ours = scoring(scorer, samples)
    lm = scorer.infiller.lm
    nodes, longest_sum = trie_nodes(lm, asked_of(lm, ours))
    with floor.counted() as cost:
        ours()
    ids = torch.randint(len(lm.tokenizer), (math.ceil(nodes / PLAIN_ROW), PLAIN_ROW))

    def plain() -> None:
        with torch.inference_mode():
            for rows in ids.split(64):
                lm.model.base_model(input_ids=rows, use_cache=False)

    row = compare(
        *(SUITE, "causal aspects: plain passes", ours, plain, runs),
        *("forward passes over as many tokens", floor.unpadded(lm, ours)),
    )
    record = {
        "suite": SUITE,
        "case": "causal aspects: sharing",
        "tokens_without_sharing": longest_sum,
        "trie_nodes": nodes,
        "tokens_read": cost.embedded,
        "read_over_nodes": cost.embedded / nodes,
        "time_over_plain": 1 / row.ratio,
    }
    print(
        f"# causal aspects: {cost.embedded} tokens read, {nodes} nodes of the trie "
        f"(×{record['read_over_nodes']:.2f}), {longest_sum} unshared; "
        f"time ×{record['time_over_plain']:.2f} of plain passes"
    )
    print(json.dumps(record), flush=True)


def asked_of(lm: CausalLM, work: Work) -> list[Continuation]:
    """What the model is asked to score while the work runs."""
    asked: list[Continuation] = []
    own = lm.log_probs

    def record(continuations: Sequence[Continuation]) -> list:
        asked.extend(continuations)
        return own(continuations)

    lm.log_probs = record
    try:
        work()
    finally:
        del lm.log_probs
    return asked


def trie_nodes(lm: CausalLM, asked: list[Continuation]) -> tuple[int, int]:
    """Tokens to read where each shared beginning is read once, and where each row is read alone."""
    start = start_token(lm.tokenizer)
    texts = [context + target for context, target in asked]
    rows = lm.tokenizer(texts, add_special_tokens=False, verbose=False).input_ids
    read = [[*start, *ids][:-1] for ids in rows]  # the last token is only predicted
    nodes = {path for ids in read for path in accumulate(ids, lambda path, i: hash((path, i)))}
    return len(nodes), sum(len(ids) for ids in read)


def reference_rows(path: Path, folder: str, samples: Samples, runs: int) -> None:
    """The user's own checkout, with its prompts, words and frequencies."""
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
            f"--reference {path} doesn't run with what is installed here: {error}. It was written "
            "for transformers 4; leave --reference out, or run it in an environment of its own"
        ) from error
    task = Task.from_published(files[1], files[2])
    for short, aspect in zip(("ar", "coh", "cons"), ASPECTS, strict=True):
        scorer = CTRLEval(folder, task, (aspect,), iwf=files[0], dtype="float32")
        # The same sentences on both sides, whatever NLTK data are there.
        module.sent_tokenize = scorer.split
        ours = scoring(scorer, samples)
        compare(
            *(SUITE, f"reference {aspect}", ours),
            lambda a=short: np.array(
                reference.score(a, samples.texts, samples.prefixes, samples.labels, 8)
            ),
            *(runs, "checkout of CTRLEval", floor.unpadded(scorer.infiller, ours)),
        )


def curves(folder: str, given: argparse.Namespace) -> None:
    for name, model in (("pegasus", folder), ("causal", CAUSAL)):
        scorer = CTRLEval(model, iwf=IWF if name == "pegasus" else None, dtype="float32")
        cost_curve(
            *(SUITE, f"{name}, three aspects"),
            lambda texts, s=scorer: scoring(s, made_of(texts, s.labels)),
            *(given.curve_texts, given.curve_words),
        )


def compiled_rows(folder: str, samples: Samples, runs: int) -> None:
    """All aspects by layers that torch has compiled, against the same layers as they are."""
    for name, model in (("pegasus", folder), ("causal", CAUSAL)):
        iwf = IWF if name == "pegasus" else None
        compiled, plain = (
            scoring(CTRLEval(model, iwf=iwf, dtype="float32", compiled=how), samples)
            for how in (True, False)
        )
        compare(SUITE, f"{name} aspects: compiled", compiled, plain, runs, "not compiled")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reference", type=Path, help="time this checkout of CTRLEval, too")
    parser.add_argument(
        "--compiled", action="store_true", help="compiled layers against plain ones"
    )
    parser.add_argument(
        "--causal-texts", type=int, default=4, help="texts of the rows of SmolLM2-135M; 0: none"
    )


def main() -> None:
    given = options(__doc__, 8, arguments)
    header()
    with tempfile.TemporaryDirectory() as folder:
        seeded_pegasus(folder)
        if given.curve:
            curves(folder, given)
            return
        if given.compiled:
            compiled_rows(folder, rated_texts(given.texts), given.runs)
            return
        if given.reference is not None:
            reference_rows(given.reference, folder, rated_texts(given.texts), given.runs)
        pegasus_rows(folder, rated_texts(given.texts), given.runs)
    if given.causal_texts:
        causal_rows(rated_texts(given.causal_texts), given.runs)
        sharing_row(given.causal_texts, given.runs)


if __name__ == "__main__":
    main()
