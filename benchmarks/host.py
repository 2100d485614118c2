"""Host time and dispatched operations of a scorer's call, which a card waits for.

    python benchmarks/host.py [--texts 64] [--cases "relevance, decoder" perplexity] [--save]

Models have the real tokenizers and depths but a width of 16, so that the model's own work is nearly
nothing, and a token budget of a card. Host time is the time outside of PyTorch's operations, the
least of three calls, on one thread. A ratio is to `host_baseline.json`, which `--save` writes;
operations are exact for one version of torch and transformers. PEGASUS needs its tokenizer,
tokenizers/pegasus in the folder CTRLREWARD_DATA.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from side_by_side import DATA, quiet
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PegasusConfig,
    PegasusForConditionalGeneration,
)

from ctrlreward import Alignment, CTRLEval, Perplexity, Reward, RewardModel, Samples
from ctrlreward.models.sources import resolve

BASELINE = Path(__file__).with_name("host_baseline.json")
BUDGET = 2**16  # tokens of a pass, as on a card
SUBJECTS = ("soup", "staff", "music", "garden", "view", "bread", "room")
OPINIONS = ("warm and full of flavour", "slow on a busy evening", "far too loud for a quiet talk")


class Counted(TorchDispatchMode):
    """Counts operations, and adds up the time inside of them."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.seconds = 0, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        self.seconds += time.perf_counter() - start
        self.count += 1
        return result


def texts(count: int) -> Samples:
    """Return texts of three to five sentences, about 50 words, with all columns."""

    def sentence(i: int) -> str:
        other = SUBJECTS[(i + 2) % 7]
        return f"The {SUBJECTS[i % 7]} was {OPINIONS[i % 3]} when {other} number {i} came."

    rows = [" ".join(sentence(7 * i + k) for k in range(3 + i % 3)) for i in range(count)]
    return Samples(
        rows,
        prefixes=[" ".join(row.split()[:3]) for row in rows],
        labels=["positive", "negative"] * (count // 2) + ["positive"] * (count % 2),
        prompts=[f"How was visit {i // 4}?" for i in range(count)],
        sources=rows[::-1],
    )


def build_cases(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return a function per case that builds its scorer; models are saved in a folder."""

    def saved(name: str, tokenizer: str | Path, build: Callable[[int], Any]) -> str:
        read = AutoTokenizer.from_pretrained(tokenizer)
        torch.manual_seed(0)
        build(len(read)).save_pretrained(folder / name)
        read.save_pretrained(folder / name)
        return str(folder / name)

    def shape(n: int, **options: Any) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=n, hidden_size=16, intermediate_size=16, num_hidden_layers=30,
            num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=8192,
            tie_word_embeddings=True, **options,
        )  # fmt: skip

    smollm2 = resolve("smollm2-135m")
    llama = saved("llama", smollm2, lambda n: LlamaForCausalLM(shape(n)))
    judge = saved("judge", smollm2, lambda n: LlamaForSequenceClassification(
        shape(n, num_labels=1)))  # fmt: skip
    bert = saved("bert", resolve("minilm-l6"), lambda n: BertModel(BertConfig(
        vocab_size=n, hidden_size=16, num_hidden_layers=6, num_attention_heads=1,
        intermediate_size=16,
    )))  # fmt: skip
    options: Any = {"batch_tokens": BUDGET}
    cases: dict[str, Callable[[], Any]] = {
        "relevance, decoder": lambda: CTRLEval(llama, aspects="attribute_relevance", **options),
        "coherence, decoder": lambda: CTRLEval(llama, aspects="coherence", **options),
        "consistency, decoder": lambda: CTRLEval(llama, aspects="consistency", **options),
        "perplexity": lambda: Perplexity(llama, **options),
        "reward model, chat": lambda: RewardModel(judge, "chat", **options),
        "preservation, encoder": lambda: Alignment(bert, aspects="preservation", **options),
        "reward of two": lambda: Reward({
            "relevance": CTRLEval(llama, aspects="attribute_relevance", evaluators=9, **options),
            "fluency": (Perplexity(llama, **options)["log_likelihood"], 0.1),
        }),
    }  # fmt: skip
    if (DATA / "tokenizers" / "pegasus").is_dir():
        pegasus = saved("pegasus", DATA / "tokenizers" / "pegasus", lambda n: (
            PegasusForConditionalGeneration(PegasusConfig(
                vocab_size=n, d_model=16, encoder_layers=16, decoder_layers=16,
                encoder_attention_heads=1, decoder_attention_heads=1, encoder_ffn_dim=16,
                decoder_ffn_dim=16, max_position_embeddings=1024,
            ))))  # fmt: skip
        for aspect in ("attribute_relevance", "coherence"):
            name = f"{aspect.removeprefix('attribute_')}, PEGASUS"
            cases[name] = lambda a=aspect: CTRLEval(pegasus, aspects=a, **options)
    return cases


def measured(scorer: Any, samples: Samples) -> dict[str, float]:
    """Return host milliseconds a text and operations of a call."""
    call = scorer if isinstance(scorer, Reward) else scorer.score
    call(samples)
    host = []
    for _ in range(3):
        with Counted() as counted:
            start = time.perf_counter()
            call(samples)
            host.append(time.perf_counter() - start - counted.seconds)
    return {"ms": 1000 * min(host) / len(samples), "operations": counted.count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--cases", nargs="*", default=[])
    parser.add_argument("--save", action="store_true", help="write the baseline")
    options, _ = parser.parse_known_args()  # `make bench ARGS=` may be for other suites
    quiet()
    torch.set_num_threads(1)
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    found = {}
    print(f"{'case':<24}{'ms a text':>10}{'ratio':>8}{'operations':>12}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for name, build in build_cases(Path(folder)).items():
            if options.cases and name not in options.cases:
                continue
            row = found[name] = measured(build(), texts(options.texts))
            before = baseline.get(name, row)
            ratios = row["ms"] / before["ms"], row["operations"] / before["operations"]
            print(
                f"{name:<24}{row['ms']:>10.2f}{ratios[0]:>8.2f}"
                f"{row['operations']:>12}{ratios[1]:>8.2f}",
                flush=True,
            )
    if options.save:
        BASELINE.write_text(json.dumps({**baseline, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
