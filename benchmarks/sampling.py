"""Sampling of the demo's policy against `generate` of transformers.

    python benchmarks/sampling.py [--runs 5] [--dtype float32]

The peer is `generate` on the same peft model, as the policy sampled before version 0.3: every row
reads its own prompt, and a report's texts come in batches of 64. No row ends early, so that both
sides draw the same number of tokens: 24 a row, after prompts of six to nine tokens.
"""

from __future__ import annotations

import torch
import yaml
from reward_step import CONFIG
from side_by_side import compare, parse_options, print_header

from ctrlreward import Samples
from ctrlreward.policy import LoRA
from ctrlreward.policy.model import load_policy
from ctrlreward.policy.rollouts import Generation, sample
from ctrlreward.recipes.controlled_generation import build_prompts
from ctrlreward.weights.loading import load_tokenizer

SUITE = "sampling"
PEER_BATCH = 64


def prompts(samples: Samples, count: int, each: int) -> list[str]:
    """Return the first prompts, each several times in consecutive rows."""
    return [prompt for prompt in samples.as_prompts().prompts[:count] for _ in range(each)]


def main() -> None:
    def add_options(parser) -> None:
        parser.add_argument("--dtype", default="float32")

    options = parse_options(__doc__, 0, add_options)
    if options.curve:
        return
    print_header()
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    given, data = config["model"]["init_args"], config["data"]["init_args"]
    tokens, temperature = (given["generation"][k] for k in ("max_completion_length", "temperature"))
    sampling = Generation(max_completion_length=tokens, temperature=temperature)
    tokenizer = load_tokenizer(given["model"])
    policy = load_policy(
        given["model"], LoRA(given["lora"]["r"], dtype=options.dtype), "cpu"
    ).eval()
    torch.manual_seed(0)
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:  # zero before training
            torch.nn.init.normal_(parameter, std=0.01)
    policy.generation_config.eos_token_id = None
    # Otherwise `generate` would multiply row by row in bfloat16.
    policy.get_output_embeddings().register_forward_pre_hook(lambda _, a: (a[0].contiguous(),))

    def ours(rows: list[str]) -> None:
        sample(policy, tokenizer, rows, sampling)

    @torch.no_grad()
    def peer(rows: list[str]) -> None:
        for start in range(0, len(rows), PEER_BATCH):
            batch = tokenizer(
                rows[start : start + PEER_BATCH],
                add_special_tokens=False,
                padding=True,
                padding_side="left",
                return_tensors="pt",
            )
            policy.generate(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                do_sample=True,
                temperature=temperature,
                top_k=0,
                top_p=1.0,
                max_new_tokens=tokens,
                pad_token_id=tokenizer.pad_token_id,
            )

    own = build_prompts(data["prefixes"], data["labels"], data["template"])
    group, batch = given["generation"]["num_generations"], data["batch_size"]
    cases = {
        f"step, {batch} prompts x {group}": prompts(own, batch, group),
        "report, 32 prompts x 4": prompts(own, 32, 4),
    }
    for case, rows in cases.items():
        row = compare(
            *(SUITE, case, lambda r=rows: ours(r), lambda r=rows: peer(r), options.runs),
            *("generate", None, getattr(torch, options.dtype)),
        )
        assert row.floor is not None
        speeds = [len(rows) * tokens / seconds for seconds in (row.ours_s, row.peer_s)]
        shares = [row.floor.floor_s / seconds for seconds in (row.ours_s, row.peer_s)]
        print(
            f"{SUITE:11}{case:34}tokens per second {speeds[0]:.0f} and {speeds[1]:.0f}, share of "
            f"the peak {shares[0]:.0%} and {shares[1]:.0%} ({options.dtype})",
            flush=True,
        )


if __name__ == "__main__":
    main()
