"""Old keywords, and keywords of TRL and peft, with their replacements.

A plain name is the argument of that name; anything else is written out. `tuner` puts the
groups together.
"""

from __future__ import annotations

OBJECTIVE = {
    "kl_coef": "beta",
    "mask_truncated": "mask_truncated_completions",
    "epsilon": "clip=(epsilon, epsilon)",
    "epsilon_high": "clip=(epsilon, epsilon_high)",
    "cliprange": "clip=(cliprange, cliprange)",
    "loss_type": "algorithm",
    "importance_sampling_level": "ratio",
    "scale_rewards": "scale",
    "dynamic_sampling": "filter_groups='total'",
    "max_num_gen_batches": "max_refills=max_num_gen_batches - 1",
}
GENERATION = {
    "group_size": "num_generations",
    "num_return_sequences": "num_generations",
    "max_new_tokens": "max_completion_length",
    "response_length": "max_completion_length",
    "stop_token": "stop",
    "stop_strings": "stop",
    "system_prompt": "system",
}
OPTIMIZER = {
    "epochs": "num_iterations",
    "num_ppo_epochs": "num_iterations",
    "num_mini_batches": "minibatches",
    "steps_per_generation": "minibatches",
    "per_device_train_batch_size": "microbatch_size",
    "gradient_accumulation_steps": "microbatch_size",
    "gradient_clip": "max_grad_norm",
    "gradient_clip_val": "max_grad_norm",
    "lr": "learning_rate",
    "schedule": "lr_scheduler_type",
}
CRITIC = {"lam": "gae_lambda", "vf_coef": "coef", "cliprange_value": "clip"}
LORA = {
    "rank": "r",
    "alpha": "lora_alpha",
    "targets": "target_modules",
    "dropout": "lora_dropout",
    "torch_dtype": "dtype",
    "quantization_config": "quantization='nf4' or 'int8'",
}
TUNER = {
    "updates": "optimizer=OptimizerConfig(...)",
    "reward_funcs": "reward=Reward(...)",
    "reward_weights": "reward=Reward({name: (component, weight)})",
    "peft_config": "lora=LoraConfig(...)",
    "model_name_or_path": "model",
    "args": "objective=Objective(...), generation=Generation(...), optimizer=OptimizerConfig(...)",
    "train_dataset": "trainer.fit(tuner, DataLoader(train_dataset, batch_size=8))",
    "eval_dataset": "Trainer(callbacks=[GenerationScorer(...)])",
    "processing_class": "model, whose folder has its tokenizer",
    "tokenizer": "model, whose folder has its tokenizer",
    "callbacks": "Trainer(callbacks=[...])",
    "max_steps": "Trainer(max_steps=...)",
    "num_train_epochs": "Trainer(max_epochs=...)",
    "output_dir": "Trainer(default_root_dir=...)",
    "logging_steps": "Trainer(log_every_n_steps=...)",
    "seed": "seed_everything(...) of Lightning",
}
