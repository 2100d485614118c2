"""Vocabularies of a transfer model: words, or subwords by byte-pair encoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ctrlreward.models.words import split_words

SPECIAL_TOKENS = ("<pad>", "<go>", "<eos>", "<unk>")
PAD, GO, EOS, UNK = range(4)


def word_vocabulary(
    sentences: Iterable[str], min_count: int = 5, max_words: int | None = None
) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the lower-cased words of sentences, split at white space.

    Tokens 0 to 3 are `<pad>`, `<go>`, `<eos>` and `<unk>`; then words by falling frequency. The
    tokenizer adds no special tokens to a text.

    Args:
        sentences: Tokenized sentences: `great .`, not `great.`.
        min_count: Words that occur less often are unknown words (5 in Shen et al., 2017).
        max_words: Largest number of words, special tokens apart; None for no limit.

    Raises:
        ValueError: `min_count` or `max_words` is below 1, or no word occurs often enough.
    """
    for name, given in {"min_count": min_count, "max_words": max_words}.items():
        if given is not None and given < 1:
            raise ValueError(f"{name} must be 1 or more, got {given}")
    counts = Counter(word for sentence in sentences for word in split_words(sentence))
    frequent = {w: n for w, n in counts.items() if n >= min_count and w not in SPECIAL_TOKENS}
    # Equally frequent words in alphabetical order, so that ids do not depend on the order of
    # sentences.
    words = sorted(frequent, key=lambda word: (-frequent[word], word))[:max_words]
    if not words:
        raise ValueError(
            f"min_count = {min_count}: no word of the sentences occurs so often. Use more "
            "sentences or a smaller number."
        )
    ids = {word: i for i, word in enumerate([*SPECIAL_TOKENS, *words])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=SPECIAL_TOKENS[UNK]))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _with_names(tokenizer)


def subword_vocabulary(sentences: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Return a byte-pair encoding of lower-cased sentences (Sennrich et al., 2016).

    Tokens 0 to 3 are `<pad>`, `<go>`, `<eos>` and `<unk>`, for characters that the
    sentences lack. Decoding restores the spaces. The tokenizer adds no special tokens to a text.

    Args:
        sentences: Sentences to learn the merges from.
        size: Number of tokens, special tokens included; sentences with few distinct words give
            fewer.

    Raises:
        ValueError: `size` is too small for the characters of the sentences.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL_TOKENS[UNK]))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.Strip(), normalizers.Replace(Regex(r"\s+"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=max(size, 0), special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    if tokenizer.get_vocab_size() > size:
        raise ValueError(
            f"size must be larger than the {tokenizer.get_vocab_size()} characters of the "
            f"sentences and special tokens, got {size}"
        )
    return _with_names(tokenizer)


def vocabulary_from_json(text: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer from its `backend_tokenizer.to_str()`, as a checkpoint stores it.

    Raises:
        ValueError: The text is not such a tokenizer, or its first tokens differ from
            `word_vocabulary`.
    """
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises nothing more specific
        raise ValueError(f"the text is not a tokenizer: {error}") from error
    first = tuple(tokenizer.id_to_token(i) for i in range(len(SPECIAL_TOKENS)))
    if first != SPECIAL_TOKENS:
        raise ValueError(
            f"the tokenizer begins with {first}, not with {SPECIAL_TOKENS}. Build it with "
            "word_vocabulary or subword_vocabulary."
        )
    return _with_names(tokenizer)


def _with_names(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    pad, go, eos, unk = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, bos_token=go, eos_token=eos, unk_token=unk
    )
