"""Labelled texts as windows of ids."""

import numpy as np
from tokenizers import Tokenizer as HubTokenizer
from tokenizers import models, pre_tokenizers, processors

from model.runtime.label_schemes import LabelScheme
from model.runtime.tokenization import Tokenizer
from model.training.examples import collate, measured_texts, prepare, shuffled_batches
from model.training.spans import IGNORED_LABEL, LabelledText, Span, bio_labels

SCHEME = LabelScheme.from_labels(bio_labels(["DRUG", "DOSE"]))
NUMBER = {name: index for index, name in enumerate(SCHEME.labels)}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "aspi", "##rin", "take", "two", "of", "now", ".", "half"]


def wordpiece() -> Tokenizer:
    """Cuts "aspirin" in two."""
    tokenizer = HubTokenizer(models.WordPiece({p: i for i, p in enumerate(PIECES)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(PIECES[:4])
    return Tokenizer(tokenizer)


def test_words_are_decided_by_their_first_token() -> None:
    """As at run time: a word of several pieces has one label, and the loss of a sequence counts words."""
    text = LabelledText("take two aspirin now", (Span(5, 8, "DOSE"), Span(9, 16, "DRUG")))
    prepared = prepare([text], wordpiece(), SCHEME, max_tokens=16)
    (example,) = prepared.examples
    names = [SCHEME.labels[label] if label != IGNORED_LABEL else None for label in example.label_ids]
    assert names == [None, "O", "B-DOSE", "B-DRUG", "I-DRUG", "O", None]
    assert example.word_tokens.tolist() == [1, 2, 3, 5]
    assert [SCHEME.labels[label] for label in example.word_labels] == ["O", "B-DOSE", "B-DRUG", "O"]
    assert not prepared.misfits
    assert prepared.split == 0


def test_a_span_that_is_no_whole_words_is_reported() -> None:
    """Decoding gives back whole words, so half of one can never be found. Its labels stay allowed ones."""
    text = LabelledText("aspirin of", (Span(4, 10, "DRUG"),))
    prepared = prepare([text], wordpiece(), SCHEME, max_tokens=16)
    assert prepared.misfits == [Span(4, 10, "DRUG")]
    assert [SCHEME.labels[label] for label in prepared.examples[0].word_labels] == ["O", "B-DRUG"]


def test_long_texts_become_windows_and_nothing_is_lost() -> None:
    """Each word is in exactly one window, with its label; an entity cut in two begins anew."""
    words = ["take", "two", "aspirin", "."] * 6
    drugs, start = [], 0
    for word in words:
        if word == "aspirin":
            drugs.append(Span(start, start + 7, "DRUG"))
        start += len(word) + 1
    text = LabelledText(" ".join(words), tuple(drugs))
    prepared = prepare([text], wordpiece(), SCHEME, max_tokens=9)
    assert prepared.split == 1
    assert max(len(example.input_ids) for example in prepared.examples) <= 9
    assert sum(len(example.word_tokens) for example in prepared.examples) == len(words)
    found = np.concatenate([example.word_labels for example in prepared.examples])
    assert (found == NUMBER["B-DRUG"]).sum() == 6
    for example in prepared.examples:
        assert example.input_ids[0] == 2
        assert example.input_ids[-1] == 3
        np.testing.assert_array_equal(
            example.label_ids[example.word_tokens] == NUMBER["B-DRUG"],
            example.word_labels == NUMBER["B-DRUG"],
        )


def test_measured_texts_keep_their_spans() -> None:
    """They are scored whole, however many windows they take."""
    text = LabelledText("take two aspirin now . " * 4, (Span(9, 16, "DRUG"),))
    (measured,) = measured_texts([text], wordpiece(), max_tokens=12)
    assert len(measured.document.windows) > 1
    assert measured.spans == text.spans


def test_padding_of_a_batch() -> None:
    """Tokens and words are padded each to their own longest."""
    texts = [LabelledText("take two aspirin now", (Span(9, 16, "DRUG"),)), LabelledText("of", ())]
    batch = collate(prepare(texts, wordpiece(), SCHEME, max_tokens=16).examples, pad_token_id=0)
    assert batch.input_ids.tolist() == [[2, 6, 7, 4, 5, 9, 3], [2, 8, 3, 0, 0, 0, 0]]
    assert batch.attention_mask.sum(1).tolist() == [7, 3]
    assert batch.label_ids[1].tolist() == [IGNORED_LABEL, 0, *[IGNORED_LABEL] * 5]
    assert batch.word_mask.sum(1).tolist() == [4, 1]
    assert batch.word_tokens[0].tolist() == [1, 2, 3, 5]


def test_the_order_of_batches_follows_from_seed_and_epoch() -> None:
    """Every example once; no state is needed to find the place again."""
    texts = [LabelledText("take two " * (1 + k % 5), ()) for k in range(50)]
    examples = prepare(texts, wordpiece(), SCHEME, max_tokens=16).examples
    first = shuffled_batches(examples, size=8, seed=1, epoch=1)
    assert sorted(index for batch in first for index in batch) == list(range(50))
    assert shuffled_batches(examples, size=8, seed=1, epoch=1) == first
    assert shuffled_batches(examples, size=8, seed=1, epoch=2) != first
    assert shuffled_batches(examples, size=8, seed=2, epoch=1) != first


def test_paragraphs_are_learned_apart_and_a_span_across_two_is_reported() -> None:
    """The service reads them apart; no example may hold what no window will."""
    text = "take aspirin now.\n\nhalf of aspirin"
    spans = (Span(5, 12, "DRUG"), Span(13, 23, "DOSE"), Span(27, 34, "DRUG"))
    prepared = prepare([LabelledText(text, spans)], wordpiece(), SCHEME, max_tokens=16)
    assert len(prepared.examples) == 2
    assert prepared.misfits == [Span(13, 23, "DOSE")]
    for example in prepared.examples:
        assert (example.word_labels == NUMBER["B-DRUG"]).sum() == 1
