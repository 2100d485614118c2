"""Log-probability of one text given another under an encoder-decoder, without a mask."""

from __future__ import annotations

from collections.abc import Mapping

from ctrlreward.models.seq2seq import Filling, Seq2SeqInfiller
from ctrlreward.models.tasks import TokenScores
from ctrlreward.models.tokenization import Ids, encode_texts


def conditional_log_probs(
    model: Seq2SeqInfiller, sources: Mapping[str, str], targets: Mapping[str, str]
) -> list[TokenScores]:
    """Return the scores of each target's tokens given its source, in the given order.

    The encoder reads the source and the decoder the target, as in training for translation or
    summarization. Every token of the target's encoding is predicted, the special tokens that the
    tokenizer adds included. Equal sources are encoded once.

    Args:
        model: Encoder-decoder; its mask plays no part.
        sources: n texts by the names that warnings of truncation give them (`"sources[3]"`).
        targets: n texts by name, in the order of their sources.
    """
    start = model.model.config.decoder_start_token_id
    fillings = _encode(model, targets, model.decoder_limit or model.source_limit)
    rows = _encode(model, sources, model.source_limit)
    scored = model.fill(rows, [[Filling((start,), ids)] for ids in fillings])
    return [scores for (scores,) in scored]


def _encode(model: Seq2SeqInfiller, texts: Mapping[str, str], limit: int) -> list[Ids]:
    return encode_texts(model.tokenizer, [*texts.values()], limit, [*texts].__getitem__)
