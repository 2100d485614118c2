"""CTRLEval's published procedure, reimplemented: one pattern and target per row, eight rows per
forward pass in the given order, with padding and logits over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from ctrlreward import Samples
from ctrlreward.functional.ctrleval import label_probabilities, weighted_mean
from ctrlreward.models.tasks import TEXT_SLOT, Blank
from ctrlreward.models.tokenization import start_token
from ctrlreward.scorers import CTRLEval
from ctrlreward.scorers.ctrleval import coherence_blanks, consistency_blanks, relevance_blanks
from ctrlreward.scorers.task import WORD_SLOT, Evaluator

BATCH = 8


def by_infilling(scorer: CTRLEval, aspect: str, samples: Samples) -> np.ndarray:
    """Score an aspect with an encoder-decoder such as PEGASUS."""
    words = tuple(w for words in scorer.task.verbalizers.values() for w in words)
    prompts = relevance_blanks([Evaluator(prompt, words) for prompt in scorer.task.prompts])
    blanks_of: dict[str, Callable[[int], Sequence[Blank]]] = {
        "coherence": lambda i: coherence_blanks(scorer.split(samples.texts[i])),
        "consistency": lambda i: consistency_blanks(samples.texts[i], samples.prefixes[i]),
        "attribute_relevance": lambda i: [blank.about(samples.texts[i]) for blank in prompts],
    }
    groups = [blanks_of[aspect](i) for i in range(len(samples))]
    rows = [
        ("".join((*blank.left, "<mask_1>", *blank.right)), target, blank.ends)
        for group in groups
        for blank in group
        for target in blank.targets
    ]
    targets = iter(_infilled(scorer, rows))
    values = []
    for i, group in enumerate(groups):
        scored = np.array([next(targets) for blank in group for _ in blank.targets])
        if aspect == "attribute_relevance":
            by_label = scored[:, 0].reshape(len(group), len(scorer.labels), -1).swapaxes(1, 2)
            probabilities = label_probabilities(by_label.reshape(-1, len(scorer.labels)))
            values.append(probabilities[scorer.labels.index(samples.labels[i])])
        else:
            values.append(weighted_mean(scored[:, 0], scored[:, 1]))
    return np.array(values)


def by_continuing(scorer: CTRLEval, samples: Samples) -> np.ndarray:
    """Score attribute relevance with a decoder-only model and prompts that follow the text."""
    rows = []
    verbalizers = list(zip(*scorer.task.verbalizers.values(), strict=True))
    for text in samples.texts:
        for prompt in scorer.task.prompts:
            context, closing = prompt.replace(TEXT_SLOT, text.strip()).split(WORD_SLOT)
            for words in verbalizers:
                rows += [(context.strip(), f" {word}{closing}") for word in words]
    shape = (len(samples), -1, len(scorer.labels))
    means = np.array(_continued(scorer, rows)).reshape(shape)
    return np.array(
        [
            label_probabilities(text_means, "mean")[scorer.labels.index(label)]
            for text_means, label in zip(means, samples.labels, strict=True)
        ]
    )


def _infilled(scorer: CTRLEval, rows: list[tuple[str, str, bool]]) -> list[tuple[float, float]]:
    """Return mean log-probability and weight of each row's target."""
    infiller = scorer.loaded_model
    scores: list[tuple[float, float]] = []
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        source = infiller.tokenizer([r[0] for r in batch], padding=True, return_tensors="pt")
        target = infiller.tokenizer(
            [r[1] for r in batch],
            padding=True,
            return_tensors="pt",
            add_special_tokens=batch[0][2],
        )
        with torch.no_grad():
            logits = infiller.model(**source, labels=target.input_ids).logits
        loss = cross_entropy(
            logits.flatten(0, 1), target.input_ids.flatten(), ignore_index=0, reduction="none"
        ).view(len(batch), -1)
        means = -(loss.sum(dim=1) / target.attention_mask.sum(dim=1))
        weights = [scorer.iwf.sentence_weight(ids) for ids in target.input_ids.numpy()]
        scores += zip(means.tolist(), weights, strict=True)
    return scores


def _continued(scorer: CTRLEval, rows: list[tuple[str, str]]) -> list[float]:
    """Return the mean log-probability of each row's target after its context."""
    tokenizer, model = scorer.loaded_model.tokenizer, scorer.loaded_model.model
    begin = start_token(tokenizer)
    means = []
    for start in range(0, len(rows), BATCH):
        encoded = [
            tokenizer(context + target, add_special_tokens=False, return_offsets_mapping=True)
            for context, target in rows[start : start + BATCH]
        ]
        longest = max(len(row.input_ids) for row in encoded)
        ids = torch.tensor(
            [begin + row.input_ids + begin * (longest - len(row.input_ids)) for row in encoded]
        )
        mask = torch.tensor(
            [
                [1] * (len(row.input_ids) + 1) + [0] * (longest - len(row.input_ids))
                for row in encoded
            ]
        )
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=mask).logits
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        for row, losses, (context, _) in zip(
            encoded, loss.view(len(encoded), -1), rows[start : start + BATCH], strict=True
        ):
            # As in our engine, a token that overlaps the target belongs to the target.
            target_tokens = [
                k for k, (_, end) in enumerate(row.offset_mapping) if end > len(context)
            ]
            means.append(-losses[target_tokens].mean().item())
    return means
