"""Golden texts cover what tokenizers stumble over, and judge rounded weights."""

import numpy as np
import pytest

from model.export.golden import (
    TEXTS,
    FidelityError,
    GoldenTexts,
    as_json,
    fidelity,
    raise_if_unfaithful,
    run_each,
    tokenise,
)
from model.export.graph import GraphModule
from tests.bundles import tiny_tokenizer
from tests.model.export.models import encoder


def test_the_texts_cover_both_languages_and_odd_characters() -> None:
    """Each is there for a reason; losing one would not be noticed otherwise."""
    together = "".join(TEXTS)
    assert len(TEXTS) == len(set(TEXTS)) >= 16
    for wanted in ("我们", "ＦＵＬＬ", "～", "👍🏽", "\u200d", "é", "\t", "\n", "<p>", "體"):
        assert wanted in together
    assert min(map(len, TEXTS)) == 1
    assert max(map(len, TEXTS)) > 400


def test_only_texts_that_fit_are_taken() -> None:
    """The service refuses golden texts longer than the model reads."""
    golden = tokenise(tiny_tokenizer(), 6, ["a cat sat on the mat and sat", "a cat", "好"])
    assert golden.texts == ("a cat", "好")
    with pytest.raises(ValueError, match="fits into 2"):
        tokenise(tiny_tokenizer(), 2, ["a cat"])


def test_answers_are_written_with_the_digits_of_float32() -> None:
    """Seven significant digits are within 1e-7 of the answer, and half the file."""
    module = GraphModule.of(encoder())
    golden = tokenise(tiny_tokenizer(), 12, ["hello world", "a cat"])
    outputs = run_each(module, golden)
    written = as_json(golden, outputs)
    assert set(written["outputs"]) == {"embeddings_mean_normalized", "embeddings_cls_normalized"}
    np.testing.assert_allclose(
        written["outputs"]["embeddings_mean_normalized"], outputs["embeddings_mean_normalized"], atol=1e-7
    )


def test_fidelity_is_the_least_cosine() -> None:
    """One text ruined among many must show."""
    golden = GoldenTexts(("a", "b"), ((7, 8, 9),) * 2, ((False,) * 3,) * 2)
    before = {"logits": [np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)]}
    after = {"logits": [np.eye(3, dtype=np.float32) * 2, np.ones((3, 3), np.float32)]}
    cosines = fidelity(golden, before, after)
    assert cosines["logits"] == pytest.approx(1 / np.sqrt(3))
    with pytest.raises(FidelityError, match=r"logits 0\.577"):
        raise_if_unfaithful(cosines)
    raise_if_unfaithful({"logits": 0.9991})
    with pytest.raises(FidelityError):
        raise_if_unfaithful({"logits": float("nan")})


def test_an_answer_that_is_not_a_number_is_unfaithful_wherever_it_stands() -> None:
    """Python's own minimum forgets a NaN behind a number."""
    golden = GoldenTexts(("a", "b", "c"), ((7,),) * 3, ((False,),) * 3)
    fine, broken = np.ones((1, 2), np.float32), np.full((1, 2), np.nan, np.float32)
    for place in range(3):
        after = [broken if index == place else fine for index in range(3)]
        cosines = fidelity(golden, {"logits": [fine] * 3}, {"logits": after})
        with pytest.raises(FidelityError, match="logits nan"):
            raise_if_unfaithful(cosines)


def test_pairs_are_recorded_with_their_segments() -> None:
    """Those that fit; for a model that is not told which text a token is of, without."""
    pairs = [("a cat", "好"), ("a cat sat on the mat", "hello world")]
    golden = tokenise(tiny_tokenizer(), 8, ["好"], pairs=pairs, token_types=True)
    written = as_json(golden, {})
    assert (written["texts"], written["second_texts"]) == (["好", "a cat"], [None, "好"])
    assert written["token_type_ids"] == [[0, 0, 0], [0, 0, 0, 0, 1, 1]]
    assert [len(ids) for ids in written["input_ids"]] == [3, 6]
    plain = as_json(tokenise(tiny_tokenizer(), 8, ["好"], pairs=pairs), {})
    assert "token_type_ids" not in plain
    assert set(as_json(tokenise(tiny_tokenizer(), 8, ["好"]), {})) == {
        *("tolerance", "texts", "input_ids", "outputs")
    }


def test_one_labels_logits_are_judged_over_all_texts() -> None:
    """The cosine of single numbers is 1 whatever they are, but for the sign."""
    golden = GoldenTexts(("a", "b"), ((7,),) * 2, ((False,),) * 2)
    before = {"sequence_logits": [np.array([3], np.float32), np.array([4], np.float32)]}
    after = {"sequence_logits": [np.array([4], np.float32), np.array([3], np.float32)]}
    assert fidelity(golden, before, after)["sequence_logits"] == pytest.approx(24 / 25)
    assert fidelity(golden, before, before)["sequence_logits"] == pytest.approx(1.0)


def test_logits_of_special_tokens_do_not_count() -> None:
    """They are never trained nor read; in a short text their noise would drown the real labels."""
    golden = GoldenTexts(("好",), ((0, 7, 2),), ((True, False, True),))
    before = {"logits": [np.array([[1, 0], [5, 1], [1, 0]], np.float32)]}
    after = {"logits": [np.array([[0, 9], [5, 1], [0, 9]], np.float32)]}
    assert fidelity(golden, before, after)["logits"] == pytest.approx(1.0)
