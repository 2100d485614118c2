from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.recipes.papers.textual_transfer.data import (
    PAD,
    UNK,
    TransferBatch,
    TransferSentences,
    vocabulary_from_json,
)

THINGS = ("food", "soup", "staff", "room", "view")
BAD = [f"the {thing} was {word} ." for thing in THINGS for word in ("bad", "cold", "so very slow")]
GOOD = [f"{start} {thing} !" for thing in THINGS for start in ("great", "we love the")]
HELD_OUT = "we love the soup !"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    too_long = " ".join("abcdefghijklmnopq")
    (tmp_path / "bad").write_text("\n".join([*BAD, "", BAD[0].upper(), too_long]))
    (tmp_path / "good").write_text("\n".join([*GOOD, *GOOD]))
    (tmp_path / "held_out").write_text(f"x\tWe  love the soup !\n{BAD[1]}\n")
    return tmp_path


def sentences_of(folder: Path, **options: Any) -> TransferSentences:
    files = {"bad": str(folder / "bad"), "good": str(folder / "good")}
    held_out = [str(folder / "held_out")]
    small: dict[str, Any] = {"exclude": held_out, "min_count": 1, "batch_size": 4}
    data = TransferSentences(**{"files": files, **small, **options})
    data.setup("fit")
    return data


def texts_of(data: TransferSentences, ids: torch.Tensor) -> list[str]:
    return [data.tokenizer.decode(row[row != PAD]) for row in ids]


def epoch_of(data: TransferSentences, step: int = 0) -> list[TransferBatch]:
    loop = SimpleNamespace(total_batch_idx=step - 1)
    data.trainer = SimpleNamespace(fit_loop=loop)  # type: ignore[assignment]
    return list(data.train_dataloader())


def as_lists(batch: TransferBatch) -> dict[str, Any]:
    return {name: value.tolist() for name, value in vars(batch).items()}


def test_held_out_repeated_and_long_sentences_are_left_out(folder: Path) -> None:
    data = sentences_of(folder)
    assert data.sentences == {
        "bad": [s for s in BAD if s != BAD[1]],
        "good": [s for s in GOOD if s != HELD_OUT],
    }
    assert data.styles == ("bad", "good")
    few = sentences_of(folder, count=3, words=(5, 5)).sentences
    assert all(len(texts) == 3 == len(set(texts)) for texts in few.values())
    assert {len(s.split()) for texts in few.values() for s in texts} == {5}
    assert few == sentences_of(folder, count=3, words=(5, 5)).sentences
    assert few != sentences_of(folder, count=3, words=(5, 5), seed=1).sentences


def test_the_vocabulary_is_that_of_the_training_sentences(folder: Path) -> None:
    counts = Counter(w for texts in (BAD, GOOD) for s in texts for w in s.split())
    for word in (*BAD[1].split(), *HELD_OUT.split()):
        counts[word] -= 1
    tokenizer = sentences_of(folder, min_count=4).tokenizer
    words = tokenizer.convert_ids_to_tokens(range(4, len(tokenizer)))
    assert set(words) == {word for word, count in counts.items() if count >= 4}
    assert len(sentences_of(folder, max_words=5).tokenizer) == 9
    again = vocabulary_from_json(tokenizer.backend_tokenizer.to_str())  # as a checkpoint has it
    assert again(BAD).input_ids == tokenizer(BAD).input_ids
    assert min(map(min, again(BAD).input_ids)) >= UNK
    assert (again.pad_token_id, again.unk_token_id) == (PAD, UNK)


def test_an_epoch_has_every_sentence_and_repeats_the_smaller_corpus(folder: Path) -> None:
    data = sentences_of(folder)
    batches = epoch_of(data)
    assert len(batches) == data.batches_per_epoch == len(data.train_dataloader()) == 4
    seen: list[Counter[str]] = [Counter(), Counter()]
    for batch in batches:
        half = len(batch.words) // 2
        assert half in (3, 4)
        assert batch.styles.tolist() == [0] * half + [1] * half
        assert batch.lengths.tolist() == (batch.words != PAD).sum(1).tolist()
        assert batch.lengths.max() == batch.words.shape[1]
        assert (batch.source_pairs.shape, batch.target_lengths.shape) == ((0, 1), (0,))
        assert {value.dtype for value in vars(batch).values()} == {torch.int64}
        for style in range(2):
            lengths = batch.lengths[batch.styles == style]
            assert lengths.max() - lengths.min() <= 2
            seen[style].update(texts_of(data, batch.words[batch.styles == style]))
    assert seen[0] == Counter(data.sentences["bad"])
    assert seen[1].keys() == set(data.sentences["good"])
    assert set(seen[1].values()) == {1, 2}  # 14 of 9


def test_order_and_noise_are_new_each_epoch_and_repeatable(folder: Path) -> None:
    data = sentences_of(folder)
    first, second = (list(map(as_lists, epoch_of(data, step))) for step in (0, 4))
    again = [list(map(as_lists, epoch_of(sentences_of(folder), step))) for step in (0, 4)]
    assert again == [first, second]
    assert [b["words"] for b in first] != [b["words"] for b in second]
    assert sorted(b["words"] for b in first) == sorted(b["words"] for b in second)
    assert sorted(b["noisy"] for b in first) != sorted(b["noisy"] for b in second)
    assert list(map(as_lists, epoch_of(sentences_of(folder, seed=1)))) != first


@given(st.integers(0, 9), st.floats(0, 6))
def test_words_move_by_less_than_the_distance(
    tmp_path_factory: pytest.TempPathFactory, seed: int, distance: float
) -> None:
    file = tmp_path_factory.getbasetemp() / "distinct"
    file.write_text("\n".join(f"{a} b c d e f g {'h i j' * (a % 2)}" for a in range(12)))
    options = {"min_count": 1, "seed": seed, "shuffle_distance": distance}
    data = TransferSentences({"x": str(file), "y": str(file)}, **options)
    data.setup("fit")
    (batch,) = epoch_of(data)
    for words, noisy, length in zip(batch.words, batch.noisy, batch.lengths, strict=True):
        assert noisy[length:].tolist() == words[length:].tolist()
        moves = [noisy.tolist().index(word) - i for i, word in enumerate(words[:length].tolist())]
        assert sorted(noisy.tolist()) == sorted(words.tolist())
        assert max(map(abs, moves)) <= distance
    same = torch.equal(batch.noisy, batch.words)
    assert same if distance <= 1 else True
    assert not same if distance >= 3 else True
