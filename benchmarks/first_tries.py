"""First tries of a new user, from memory of TRL, peft, Lightning, torchmetrics and evaluate.

    python benchmarks/first_tries.py [--only SUBSTRING]

Each try runs in a new process, in an empty folder with a few small files. It has to work, or to end
with one line that says what to type. Prints a table: the try, whether it did as expected, the
seconds from the start of Python, and the last line printed. Exit status 1 if any failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

TEXTS = """
texts = ["The soup was cold and bland.", "The soup made our evening."]
"""
TUNER = """
import torch, pytorch_lightning as pl
from ctrlreward import Reward
from ctrlreward.policy import Generation, PolicyTuner
def short(completions, **kwargs):
    return [-float(len(completion)) for completion in completions]
options = dict(accelerator="cpu", logger=False, enable_checkpointing=False, max_steps=1,
               enable_progress_bar=False, enable_model_summary=False)
generation = Generation(num_generations=2, max_completion_length=4)
"""
WRITER = """
import pytorch_lightning as pl
from pytorch_lightning.demos.boring_classes import BoringModel
from ctrlreward import Samples
from ctrlreward.callbacks import *
class Writer(BoringModel):
    def complete(self, prompts):
        return [" good" * (1 + i % 2) for i, _ in enumerate(prompts)]
def length(texts):
    return [float(len(text)) for text in texts]
options = dict(accelerator="cpu", max_epochs=2, limit_train_batches=2, limit_val_batches=1,
               enable_progress_bar=False, enable_model_summary=False)
"""


@dataclass(frozen=True)
class Try:
    """What a user types, and what has to come of it.

    Attributes:
        name: What is tried.
        typed: Python code, or a command line that starts with "ctrlreward".
        says: Pattern of the line that says what to type; None if it has to work.
        prints: Pattern of the output if it works.
    """

    name: str
    typed: str
    says: str | None = None
    prints: str = ""


TRIES = [
    # Scorers
    Try(
        "CTRLEval on texts alone",
        TEXTS + "from ctrlreward import CTRLEval\nprint(*CTRLEval().score(texts))",
        prints="^coherence$",
    ),
    Try(
        "LexiconSentiment without labels",
        TEXTS + "from ctrlreward import LexiconSentiment\nprint(*LexiconSentiment().score(texts))",
        prints="polarity",
    ),
    Try(
        "Alignment of all aspects",
        TEXTS
        + "from ctrlreward import Alignment\n"
        + 'print(*Alignment(aspects="all").score(texts, sources="The soup was warm."))',
        prints="preservation",
    ),
    Try(
        "Distinct by prefixes",
        TEXTS
        + "from ctrlreward import Distinct\n"
        + 'print(Distinct().score(texts, prefixes="The soup"))',
        prints="distinct_2",
    ),
    Try(
        "integer groups and labels",
        TEXTS
        + "from ctrlreward import Distinct\n"
        + "print(Distinct().score(texts, groups=[0, 1], labels=[0, 1]))",
        prints="distinct_2",
    ),
    Try(
        "Accuracy without a model",
        TEXTS
        + "from ctrlreward import Accuracy\n"
        + 'print(Accuracy().score(texts, labels=["negative", "positive"]))',
        prints="accuracy",
    ),
    Try(
        "BARTScore without a model",
        TEXTS + 'from ctrlreward import BARTScore\nBARTScore().score(texts, sources="Soup.")',
        says=r"BARTScore\(",
    ),
    Try(
        "transformers' keyword for the model",
        'from ctrlreward import Perplexity\nPerplexity(model_name="smollm2-135m")',
        says="model",
    ),
    Try(
        "transformers' keyword for the dtype",
        'from ctrlreward import Perplexity\nPerplexity("smollm2-135m", torch_dtype="bfloat16")',
        says="dtype",
    ),
    Try(
        "evaluate's predictions",
        TEXTS + "from ctrlreward import Perplexity\nPerplexity().score(predictions=texts)",
        says="texts",
    ),
    Try(
        "a singular column",
        TEXTS
        + "from ctrlreward import CTRLEval\n"
        + 'print(CTRLEval(aspects="attribute_relevance").score(texts, label="positive"))',
        prints="attribute_relevance",
    ),
    Try(
        "a typo in a short name",
        TEXTS + 'from ctrlreward import Perplexity\nPerplexity("smollm2-135").score(texts)',
        says="smollm2-135m",
    ),
    Try(
        "a folder that is not there",
        TEXTS + 'from ctrlreward import Perplexity\nPerplexity("./nowhere").score(texts)',
        says="nowhere",
    ),
    Try(
        "one string",
        'from ctrlreward import Perplexity\nPerplexity().score("The soup was cold.")',
        says="list",
    ),
    Try(
        "a lexicon in the place of a classifier",
        "from ctrlreward import LexiconSentiment, Perplexity, Similarity, TransferQuality\n"
        "TransferQuality(LexiconSentiment(), Similarity(), Perplexity())",
        says="Accuracy",
    ),
    # Rewards
    Try(
        "a function of texts as a component",
        TEXTS
        + "from ctrlreward import Reward\n"
        + 'print(Reward({"length": lambda texts: [len(t) for t in texts]})(texts).total)',
        prints=r"28\. +26\.",
    ),
    Try(
        "TRL's reward function as a component",
        TEXTS
        + "from ctrlreward import Reward\n"
        + "def short(prompts, completions, **kwargs): return [-len(c) for c in completions]\n"
        + 'print(Reward({"short": (short, 0.5)})(texts, prefixes="The soup", prompts="p").total)',
        prints=r"-10\. +-9\.",
    ),
    Try(
        "a function as the reward",
        TEXTS
        + "from ctrlreward import Reward\n"
        + "def length(texts): return [float(len(t)) for t in texts]\n"
        + "print(Reward(length)(texts).total)",
        prints=r"28\. +26\.",
    ),
    Try(
        "a list of reward functions",
        TEXTS
        + "from ctrlreward import Reward\n"
        + "def length(texts): return [float(len(t)) for t in texts]\n"
        + "def words(texts): return [float(len(t.split())) for t in texts]\n"
        + "print(Reward([length, words])(texts).total)",
        prints=r"34\. +31\.",
    ),
    Try(
        "a reward server that is not there",
        TEXTS
        + "from ctrlreward import RemoteReward\n"
        + 'RemoteReward("http://127.0.0.1:9")(texts)',
        says="ctrlreward serve",
    ),
    # PolicyTuner
    Try(
        "PolicyTuner, a function, strings",
        TUNER
        + 'loader = torch.utils.data.DataLoader(["The soup", "Our guide"], batch_size=2)\n'
        + 'tuner = PolicyTuner("smollm2-135m", short, generation=generation)\n'
        + 'pl.Trainer(**options).fit(tuner, loader)\nprint("trained", tuner.last_rollout[1].total)',
        prints="trained",
    ),
    Try(
        "PolicyTuner, dicts",
        TUNER
        + 'rows = [{"prompt": "The soup", "label": 1}, {"prompt": "Our guide", "label": 0}]\n'
        + "loader = torch.utils.data.DataLoader(rows, batch_size=2)\n"
        + 'tuner = PolicyTuner("smollm2-135m", short, generation=generation)\n'
        + 'pl.Trainer(**options).fit(tuner, loader)\nprint("trained", tuner.last_rollout[1].total)',
        prints="trained",
    ),
    Try(
        "PolicyTuner, a datasets.Dataset, peft's LoraConfig",
        TUNER
        + "from datasets import Dataset\nfrom peft import LoraConfig\n"
        + 'data = Dataset.from_dict({"prompt": ["The soup", "Our guide"]})\n'
        + "loader = torch.utils.data.DataLoader(data, batch_size=2)\n"
        + 'tuner = PolicyTuner("smollm2-135m", {"short": short}, generation=generation,\n'
        + '                    lora=LoraConfig(r=4, target_modules=["q_proj"]))\n'
        + 'pl.Trainer(**options).fit(tuner, loader)\nprint("trained", tuner.last_rollout[1].total)',
        prints="trained",
    ),
    Try(
        "LoRA by peft's names",
        "from ctrlreward.policy import LoRA\n"
        'print(LoRA(r=8, lora_alpha=16, target_modules=["q_proj"], lora_dropout=0.1))',
        prints="r=8",
    ),
    Try(
        "LoRA by the old name",
        "from ctrlreward.policy import LoRA\nLoRA(rank=8)",
        says=r"\br\b",
    ),
    Try(
        "TRL's options as keywords",
        TUNER + 'PolicyTuner("smollm2-135m", short, num_generations=4)',
        says=r"Generation\(num_generations",
    ),
    Try(
        "TRL's reward_funcs",
        TUNER + 'PolicyTuner("smollm2-135m", reward_funcs=short)',
        says="reward",
    ),
    Try(
        "the old name of beta",
        "from ctrlreward.policy import Objective\nObjective(kl_coef=0.04)",
        says="beta",
    ),
    Try(
        "TRL's names in the groups",
        "from ctrlreward.policy import Generation, Objective, OptimizerConfig\n"
        "print(Generation(num_generations=4, max_completion_length=64, top_p=0.95),"
        " Objective(beta=0.04), OptimizerConfig(learning_rate=1e-5))",
        prints="top_p=0.95",
    ),
    # Callbacks
    Try(
        "GenerationScorer with a function, best checkpoint, test",
        WRITER
        + 'scorer = GenerationScorer({"length": length}, ["The soup", "Our guide"])\n'
        + 'best = RewardCheckpoint("score/length")\n'
        + "trainer = pl.Trainer(callbacks=[scorer, best], **options)\n"
        + 'trainer.fit(Writer())\nprint(trainer.test(Writer(), ckpt_path="best", verbose=False))',
        prints="score/length",
    ),
    Try(
        "sources as the prompts",
        WRITER + "GenerationScorer(\n"
        '    {"length": length}, Samples(texts=["A soup."], sources=["A soup."]))',
        says="prompts",
    ),
    Try(
        "a checkpoint by a score that is better when lower",
        WRITER
        + "from ctrlreward import Perplexity\n"
        + 'scorer = GenerationScorer({"perplexity": Perplexity()["perplexity"]}, ["The soup"])\n'
        + 'best = RewardCheckpoint("score/perplexity")\n'
        + "pl.Trainer(callbacks=[scorer, best], **options).fit(Writer())\nprint(best.mode)",
        prints="min",
    ),
    Try(
        "a typo in monitor",
        WRITER
        + 'scorer = GenerationScorer({"length": length}, ["The soup"])\n'
        + 'stop = RewardEarlyStopping("score/lenght")\n'
        + "pl.Trainer(callbacks=[scorer, stop], **options).fit(Writer())",
        says="score/length",
    ),
    Try(
        "transformers' keyword of early stopping",
        WRITER + 'RewardEarlyStopping("score/length", early_stopping_patience=2)',
        says="patience",
    ),
    # Commands
    Try(
        "score a file by its column",
        "ctrlreward score reviews.csv out.csv --scorers Distinct --columns.text review",
        prints="",
    ),
    Try(
        "score standard input",
        "ctrlreward score - - --scorers Distinct < texts.jsonl",
        prints="distinct_2",
    ),
    Try(
        "integer labels",
        "ctrlreward score reviews.csv out.csv --scorers LexiconSentiment --columns.text review "
        "--columns.label stars --label-map 0=negative 1=positive",
        prints="",
    ),
    Try(
        "a file that is not there",
        "ctrlreward score nope.jsonl out.csv --scorers Perplexity",
        says="nope.jsonl",
    ),
    Try(
        "a typo in a scorer",
        "ctrlreward score texts.jsonl out.csv --scorers Perplexty",
        says="Perplexity",
    ),
    Try("a typo in a command", "ctrlreward trian --config demo.yaml", says="train"),
    Try("a recipe that is not there", "ctrlreward train --config nope.yaml", says="nope.yaml"),
    Try(
        "an abbreviated option",
        "ctrlreward train --config {demo} --trainer.max_step 3",
        says="max_steps",
    ),
    Try(
        "an old option",
        "ctrlreward train --config {demo} --model.lora.rank 8",
        says=r"\br\b",
    ),
    Try("a typo in a YAML", "ctrlreward train --config typo.yaml", says="max_steps"),
    Try(
        "a smoke run",
        "ctrlreward train --config {demo} --smoke --trainer.default-root-dir runs/smoke",
        prints="",
    ),
    Try("a reward that is not there", "ctrlreward serve nope.yaml", says="nope.yaml"),
    Try("a typo in a reward", "ctrlreward serve typo_reward.yaml", says="Perplexity"),
    Try(
        "an address that others reach",
        "ctrlreward serve reward.yaml --hots 0.0.0.0",
        says="host",
    ),
    Try(
        "compare with one run",
        "ctrlreward compare runs/seed0",
        says="(?i)run",
    ),
]

FILES = {
    "texts.jsonl": '{"text": "The soup was cold.", "prefix": "The soup"}\n'
    '{"text": "The soup made our evening.", "prefix": "The soup"}\n',
    "reviews.csv": "review,stars\nThe soup was cold and bland.,0\nThe soup made our evening.,1\n",
    "typo.yaml": "trainer:\n  max_step: 3\n",
    "typo_reward.yaml": "components:\n  fluency: {scorer: Perplexty, score: log_likelihood}\n",
    "reward.yaml": "components:\n  fluency: {scorer: Perplexity, score: log_likelihood}\n",
}


def attempt(one: Try, folder: Path) -> tuple[bool, float, str]:
    """Return whether a try did as expected, its seconds and the last line that it printed."""
    from ctrlreward import configs

    demo = Path(configs.__path__[0]) / "controlled_generation" / "sentiment_smollm2.yaml"
    if one.typed.startswith("ctrlreward "):
        typed = one.typed.replace("{demo}", str(demo))
        command = ["sh", "-c", f"{sys.executable} -m {typed}"]
    else:
        (folder / "own.py").write_text(one.typed)
        command = [sys.executable, "own.py"]
    start = time.perf_counter()
    ended = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"WANDB_MODE": "offline", "TRANSFORMERS_VERBOSITY": "error"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    seconds = time.perf_counter() - start
    printed = (ended.stdout if ended.returncode == 0 else ended.stderr).strip().splitlines()
    while len(printed) > 1 and printed[-1].startswith("raised by "):
        printed.pop()  # a note of the error
    last = printed[-1] if printed else ""
    if one.says is None:
        good = ended.returncode == 0 and re.search(one.prints, ended.stdout, re.MULTILINE)
        return bool(good), seconds, last
    return ended.returncode != 0 and bool(re.search(one.says, last)), seconds, last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="tries whose name contains this")
    parser.add_argument("--json", help="file for the results")
    options = parser.parse_args()
    results = []
    for one in TRIES:
        if options.only not in one.name:
            continue
        with tempfile.TemporaryDirectory() as name:
            for file, content in FILES.items():
                (Path(name) / file).write_text(content)
            good, seconds, last = attempt(one, Path(name))
        outcome = ("works" if one.says is None else "says") if good else "FAILS"
        results.append({"try": one.name, "outcome": outcome, "s": round(seconds, 1), "last": last})
        shown = textwrap.shorten(last, 150)
        print(f"{one.name:52}{outcome:7}{seconds:6.1f} s  {shown}", flush=True)
    failed = sum(result["outcome"] == "FAILS" for result in results)
    print(f"{len(results)} tries, {failed} failed")
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
