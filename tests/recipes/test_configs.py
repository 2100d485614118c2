"""Every training job of `configs/` for two steps, with tiny models; M0 to M7 and their data."""

from __future__ import annotations

import re
import subprocess
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import wandb

from ctrlreward import WordVectors
from ctrlreward.cli import main
from ctrlreward.command_line.config_files import read_config, read_job, resolved
from ctrlreward.files import JsonLog

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
TRANSFER = CONFIGS / "textual_transfer"
# Laid over another file, or with reward models that test_reward_model.py trains first.
LEFT_OUT = ("small", "as_printed", "official", "reward_model_smollm2")
LINES = 400  # of each file
JOBS = [
    [path]
    for path in sorted(CONFIGS.rglob("*.yaml"))
    if path.stem not in LEFT_OUT and {"extends", "trainer"} & read_config(path).keys()
]
JOBS += [[TRANSFER / "yelp.yaml", TRANSFER / f"{name}.yaml"] for name in LEFT_OUT[:3]]
# Models of the hub, and a card.
OPTIONS = {
    "paper_roberta_large": [
        *("--trainer.accelerator=cpu", "--trainer.precision=32-true"),
        *("--model.init_args.encoder=minilm-l6", "--data.init_args.pairs.infiller=smollm2-135m"),
        *("--data.init_args.pairs.paraphraser=t5", "--data.init_args.pairs.device=cpu"),
        "--data.init_args.pairs.extra_pairs=true",  # a random paraphraser leaves no others
    ],
    "consistency_smollm2": [
        *("--model.init_args.layers=2", "--model.init_args.frozen_layers=1"),
        "--trainer.precision=32-true",
    ],
    # The words of a tiny policy have no vectors.
    "yelp_smollm2": ["--values.scoring_models.encoder=minilm-l6"],
    "yelp_warm_up_flan_t5": ["--model.init_args.model=t5"],
    "yelp_flan_t5": [
        *("--model.init_args.model=t5", "--values.scoring_models.encoder=minilm-l6"),
    ],
}
QUICK = ("sentiment_smollm2", "text_cnn_yelp")  # the others by `make soak`


@pytest.fixture
def data(
    workplace: dict[str, str],
    tiny_t5: str,
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Beginnings of the data sets, and of those that the tests' data lack, with tiny vectors."""
    folder = tmp_path / "data"
    for name in ("yelp_shen/sentiment.*", "li2018/*.[01]", "wikitext2/*.txt"):
        for path in data_dir.glob(name):
            copy = folder / path.relative_to(data_dir)
            copy.parent.mkdir(parents=True, exist_ok=True)
            with open(path, encoding="utf-8") as lines:
                copy.write_text("".join(islice(lines, LINES)), encoding="utf-8")
    for i in (0, 1):
        known = folder / f"yelp_shen/sentiment.test.{i}"
        lines = known.read_text("utf-8").splitlines()
        known.with_name(f"sentiment.train.{i}").write_text("\n".join(lines[300:]) + "\n")
    words = {word for file in (folder / "yelp_shen").iterdir() for word in file.read_text().split()}
    vectors = WordVectors(
        {word: [float(i % 3 - 1), 1.0 + i % 5] for i, word in enumerate(sorted(words))}
    )
    vectors.save(str(tmp_path / "runs" / "glove_300d"))
    monkeypatch.setitem(workplace, "glove-6b-50d", str(tmp_path / "runs" / "glove_300d"))
    (tmp_path / "t5").symlink_to(tiny_t5)
    monkeypatch.setenv("CTRLREWARD_DATA", str(folder))
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "job",
    [pytest.param(j, marks=[] if j[-1].stem in QUICK else pytest.mark.soak) for j in JOBS],
    ids=lambda job: job[-1].stem,
)
def test_a_job_trains(job: list[Path], data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run

    def train(command: list[str], **options: Any) -> Any:
        if command[1:4] != ["-m", "ctrlreward", "train"]:
            return run(command, **options)
        config = Path(command[command.index("--config") + 1])
        return main([*command[3:], *OPTIONS.get(config.stem, [])])

    monkeypatch.setattr(subprocess, "run", train)
    files = [part for path in job for part in ("--config", str(path))]
    options = ["--values.model", "m7"] if len(job) == 2 else OPTIONS.get(job[0].stem, [])
    main(["train", *files, *options, "--smoke"])
    wandb.finish()
    roots = [path for path in data.glob("*-smoke-*") if (path / "metrics.jsonl").is_file()]
    assert roots
    assert all(JsonLog(root / "metrics.jsonl").read() for root in roots)


# Losses of the paper's table of models, and their weights.
NAMES = {"para": "paraphrase", "cyc": "cycle", "lang": "language"}
NAMES |= {"second discriminators": "critic"}
LAMBDAS = {"paraphrase": 0.2, "cycle": 5.0, "language": 1e-3, "critic": 1.0}


def test_each_model_has_the_losses_of_the_papers_table(papers_dir: Path) -> None:
    facts = (papers_dir / "textual_transfer.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (M\d) \| ([^|]+) \|$", facts, re.MULTILINE)
    assert len(rows) == 8
    for model, losses in rows:
        job: Any = resolved(read_job(TRANSFER / "yelp.yaml"), {"values.model": model.lower()})
        found = {NAMES[loss.strip()] for loss in losses.split(",") if loss.strip() in NAMES}
        assert job["model"]["init_args"]["lambdas"] == {name: LAMBDAS[name] for name in found}
        assert job["trainer"]["default_root_dir"] == f"runs/textual_transfer/{model.lower()}"


@pytest.mark.parametrize("name", ["yelp", "official"])
def test_selection_and_report_never_see_training_sentences(name: str) -> None:
    base, top = read_job(TRANSFER / "yelp.yaml"), read_job(TRANSFER / f"{name}.yaml")
    values: Any = resolved({"values": {**base["values"], **top["values"]}})["values"]
    trained_on = set(values["train"].values())
    assert trained_on <= set(values["seen"])
    assert set(values["held_out"]) <= set(values["seen"])
    assert not trained_on & {*values["dev"].values(), *values["references"].values()}
