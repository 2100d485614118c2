"""Script of test_sharded.py: runs whose weights two CPU ranks share, each writing its results."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from fakes import ByText
from lightning_choice import (
    LIGHTNING,
    BeforeAfter,
    GenerationScorer,
    RewardCheckpoint,
    RewardEarlyStopping,
    pl,
    quiet_trainer,
)
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from ctrlreward import Samples
from ctrlreward.sharded_weights import whole_weights

strategies = import_module(f"{LIGHTNING}.strategies")
PROMPTS = Samples(["ab", "c", "dea", "bad", "e"])
STEPS = 5
# Of FSDP1's full checkpoints on the CPU PyTorch's gather ends the process.
INTERRUPTED = ("FSDP2 sharded", "FSDP2 full", "FSDP1 sharded")


class OnCPU(strategies.FSDPStrategy):
    """FSDP1, which Lightning refuses on the CPU under its own name."""

    def _setup_model(self, model: torch.nn.Module) -> FullyShardedDataParallel:
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), **self.kwargs)


class Writer(pl.LightningModule):
    """Module with a small Llama, sharded layer by layer under FSDP2, which decodes greedily."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.name = model
        self.model: PreTrainedModel | None = None
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.asked: list[list[str]] = []

    def configure_model(self) -> None:
        if self.model is not None:
            return
        self.model = AutoModelForCausalLM.from_pretrained(self.name)
        if type(self.trainer.strategy) is strategies.ModelParallelStrategy:
            mesh = self.device_mesh["data_parallel"]
            for layer in self.model.model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)

    def complete(self, prompts: Sequence[str]) -> list[str]:
        assert self.model is not None
        self.asked.append(list(prompts))
        texts = []
        for prompt in prompts:  # of different lengths, and as often as this rank has prompts
            ids = self.tokenizer(prompt, return_tensors="pt").input_ids.to(self.device)
            new = self.model.generate(ids, do_sample=False, max_new_tokens=3 + len(prompt))
            texts.append(self.tokenizer.decode(new[0, ids.shape[1] :], skip_special_tokens=True))
        return texts

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        assert self.model is not None
        return self.model(input_ids=batch, labels=batch).loss

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        assert self.model is not None
        self.log("loss", self.model(input_ids=batch, labels=batch).loss, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)

    def train_dataloader(self) -> DataLoader[torch.Tensor]:
        return DataLoader(torch.arange(24).reshape(2, 12) % 5 + 2)  # type: ignore[arg-type]

    val_dataloader = train_dataloader


def strategy_of(name: str) -> Any:
    if name == "one rank":
        return "auto"
    if name.startswith("FSDP1"):
        policy, kind = ModuleWrapPolicy({LlamaDecoderLayer}), name.split()[1]
        return OnCPU(auto_wrap_policy=policy, state_dict_type=kind)
    sharded = name == "FSDP2 sharded"
    return strategies.ModelParallelStrategy(2, 1, save_distributed_checkpoint=sharded)


def run(
    name: str,
    model: str,
    folder: Path,
    steps: int = STEPS,
    compare: bool = True,
) -> dict[str, Any]:
    """Train, from `last.ckpt` if there is one, and return what was generated and decided."""
    scorer = ByText()
    stopper = RewardEarlyStopping("score/v", patience=3)
    keeper = RewardCheckpoint("score/v", dirpath=str(folder / "kept"))
    module = Writer(model)
    report = BeforeAfter({"v": ByText()["value"]}, Samples(["a", "ba", "d"]), 1)
    trainer = quiet_trainer(
        callbacks=[GenerationScorer({"v": scorer["value"]}, PROMPTS), stopper, keeper]
        + [report] * compare,
        check_val_every_n_epoch=None,
        default_root_dir=folder,
        devices=1 if name == "one rank" else 2,
        enable_checkpointing=True,
        max_steps=steps,
        num_sanity_val_steps=1,
        strategy=strategy_of(name),
        use_distributed_sampler=False,
        val_check_interval=1,
    )
    error, last = "", folder / "kept" / "last.ckpt"
    try:
        trainer.fit(module, ckpt_path="last" if last.exists() else None)
    except OSError as raised:
        error = f"{type(raised).__name__}: {raised}"
    except RuntimeError as raised:  # on the other rank
        error = str(raised)
    after = folder / "after.jsonl"
    return {
        "error": error,
        "asked": module.asked,
        "scored": scorer.scored,
        "selected": keeper.selected_step,
        "best": str(keeper.best_model_path),
        "state": keeper.state.to_dict(),
        "stop": stopper.state.to_dict(),
        "loss": float(trainer.callback_metrics["loss"]),
        "score": float(trainer.callback_metrics["score/v"]),
        "after": after.read_text() if after.exists() else "",
    }


def run_on_a_full_disk(model: str, folder: Path) -> dict[str, Any]:
    """Train with a disk that is full when rank 0 finishes its third checkpoint, after step 1."""
    save, saved = torch.save, []

    def full(content: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        saved.extend([file] * str(file).endswith("meta.pt"))
        if len(saved) == 3:
            raise OSError("no space left")
        save(content, file, *args, **kwargs)

    with patch("torch.save", full):
        return run("FSDP2 sharded", model, folder, compare=False)


def net() -> torch.nn.Sequential:
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 4))
    return torch.nn.Sequential(inner, torch.nn.Linear(4, 3))


def kinds_of(module: torch.nn.Module) -> list[str]:
    return [type(weight).__name__ for weight in module.parameters()]


def run_plain_loop(rank: int) -> dict[str, Any]:
    """Call a part of a net alone, as `generate` of peft does, before and after a step of training.

    In inference mode, as Lightning validates, and on rank 1 three times as often.
    """
    sharded, whole, inputs = net(), net(), torch.ones(2, 4)
    fully_shard(sharded[0][0], reshard_after_forward=False)  # type: ignore[index]
    fully_shard(sharded[0][2])  # type: ignore[index]
    fully_shard(sharded)
    seen: dict[str, Any] = {"differences": [], "shards": [], "after a pass": []}
    for _ in range(2):
        with torch.inference_mode(), whole_weights(sharded):
            for _ in range(1 + 2 * rank):
                difference = sharded[0](inputs) - whole[0](inputs)
            seen["differences"].append(difference.abs().max().item())
        seen["shards"].append(kinds_of(sharded))
        output = sharded(inputs)
        seen["after a pass"].append(kinds_of(sharded))
        output.sum().backward()
        whole(inputs).sum().backward()
        for weight in (*sharded.parameters(), *whole.parameters()):
            weight.data -= 0.1 * weight.grad  # type: ignore[operator]
            weight.grad = None
    return seen


def run_all(rank: int) -> None:
    folder, model = Path(sys.argv[1]), sys.argv[2]
    seen: dict[str, Any] = {"FSDP2": run("FSDP2 sharded", model, folder / "FSDP2")}
    for name in INTERRUPTED:
        run(name, model, folder / name, steps=2)
        seen[name] = run(name, model, folder / name)
    seen["plain loop"] = run_plain_loop(rank)
    seen["full disk"] = run_on_a_full_disk(model, folder / "full disk")
    (folder / f"rank{rank}.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from forked_ranks import on_two_ranks

    torch.set_num_threads(1)
    on_two_ranks(run_all)
