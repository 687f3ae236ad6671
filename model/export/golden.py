"""Golden texts: a few texts with the answers that PyTorch gives, which the service recomputes at start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

    from model.export.graph import GraphModule

# Between PyTorch, one text at a time, and an engine on another machine, in one padded batch.
TOLERANCE: Final = 1e-4
# Of unit vectors, of all logits of a text, or of one label's logits of all texts: the least that rounded
# weights may give.
LEAST_FIDELITY: Final = 0.999
_RECORDED: Final = ("embeddings_mean_normalized", "embeddings_cls_normalized", "logits", "sequence_logits")
_SIGNIFICANT_DIGITS: Final = 7

# What tokenizers stumble over: both languages, names, digits, full-width forms, emoji (one of several code
# points), accents, blanks, markup, a text of many tokens and one of a single character.
TEXTS: Final = (
    "How do I return an item that arrived damaged?",
    "收到的商品有破损，怎么申请退货？",
    "query: 发票什么时候寄出",
    "Li Wei joined the research team of Northwind Traders in Shenzhen last March.",
    "王小明上周从北京飞到上海，参加华东师范大学的毕业典礼。",
    "订单号 A-20391 的退款 3,299.00 元预计 3～5 个工作日到账。",
    "ＦＵＬＬ－ＷＩＤＴＨ　ｌｅｔｔｅｒｓ　ａｎｄ　１２３",
    "Great service 👍🏽 will order again 🎉🎉",
    "快递小哥人超好👨‍👩‍👧，下次还来～",
    "Zoë's café in São Paulo serves crème brûlée; naïve façade, Ångström.",
    "  two  leading blanks,\ta tab,\nand a line break ",
    "<p>Reset your password at https://example.com/reset?id=42&lang=zh</p>",
    "我们的APP支持iOS和Android，WiFi下更新到v2.10.3即可。",
    "臺灣的繁體中文也要能夠正確處理：體驗、憂鬱、龜。",
    "好",
    (
        "Our warehouse ships every weekday before noon. 下午四点前付款的订单当天发出，周末和法定节假日顺延。 "
        "If the parcel is late, open the order page, choose the shipment and press Track; the carrier, "
        "the last scan and the expected day are shown there. 如果超过预计日期两天仍未送达，请联系在线客服，"
        "我们会与快递公司核实并在二十四小时内给您答复。 Damaged goods can be sent back within thirty days "
        "at no cost: print the label, pack the item with everything that came with it, and hand it to any "
        "pick-up point. 退款会按原支付方式退回，信用卡一般需要三到五个工作日，其他方式即时到账。"
    ),
)

# For classifiers, which may read two texts together: in both languages, across them, and of unlike lengths.
PAIRS: Final = (
    ("How long does a refund take?", "Refunds arrive within three working days."),
    ("退款要多久？", "退款三个工作日到账。"),
    ("怎么申请退款？", "We deliver on Sundays as well."),
    ("好", "下午四点前付款的订单当天发出，周末和法定节假日顺延。"),
    ("The parcel is late, and the order page shows no scan since Tuesday.", "OK"),
)


@dataclass(frozen=True, slots=True)
class GoldenTexts:
    """Tokenised texts.

    Attributes:
        texts: In order.
        input_ids: Of each, special tokens included.
        special: Which of those are special tokens.
        second_texts: Of pairs; None for a text by itself, and nothing at all if each is.
        token_type_ids: Of each of ``input_ids``; nothing at all if each is 0.
    """

    texts: tuple[str, ...]
    input_ids: tuple[tuple[int, ...], ...]
    special: tuple[tuple[bool, ...], ...]
    second_texts: tuple[str | None, ...] = ()
    token_type_ids: tuple[tuple[int, ...], ...] = ()


class FidelityError(RuntimeError):
    """Rounding the weights as asked moves the model's answers too far."""


def tokenise(
    tokenizer: Tokenizer,
    max_tokens: int,
    texts: Sequence[str] = TEXTS,
    *,
    pairs: Sequence[tuple[str, str]] = (),
    token_types: bool = False,
) -> GoldenTexts:
    """Tokenise the texts that fit into a model.

    Args:
        tokenizer: Without truncation and padding.
        max_tokens: Of the model; longer texts are left out.
        texts: To choose from.
        pairs: The same, of texts that are read together.
        token_types: Whether the model is told which of a pair's texts a token is of.

    Raises:
        ValueError: None fits.
    """
    encoded: dict[tuple[str, str | None], Encoding] = {(text, None): tokenizer.encode(text) for text in texts}
    encoded |= {pair: tokenizer.encode(*pair) for pair in pairs}
    fitting = {text: encoding for text, encoding in encoded.items() if len(encoding.ids) <= max_tokens}
    if not fitting:
        raise ValueError(f"no golden text fits into {max_tokens} tokens")
    return GoldenTexts(
        tuple(text for text, _ in fitting),
        tuple(tuple(encoding.ids) for encoding in fitting.values()),
        tuple(tuple(map(bool, encoding.special_tokens_mask)) for encoding in fitting.values()),
        tuple(second for _, second in fitting) if pairs else (),
        tuple(tuple(encoding.type_ids) for encoding in fitting.values()) if token_types else (),
    )


def run_each(module: GraphModule, golden: GoldenTexts) -> dict[str, list[NDArray[np.float32]]]:
    """Run PyTorch on one text at a time, unpadded.

    Returns:
        By recorded output: one array a text, [H] for vectors, [S, L] for logits of tokens, [L] for those of
        the whole text.
    """
    results: dict[str, list[NDArray[np.float32]]] = {name: [] for name in module.outputs if name in _RECORDED}
    for index, ids in enumerate(golden.input_ids):
        row = np.array([ids], np.int64)
        types = np.array([golden.token_type_ids[index]], np.int64) if golden.token_type_ids else row * 0
        outputs = module.run({"input_ids": row, "attention_mask": np.ones_like(row), "token_type_ids": types})
        for name, arrays in results.items():
            arrays.append(outputs[name][0])
    return results


def fidelity(
    golden: GoldenTexts,
    original: Mapping[str, Sequence[NDArray[np.float32]]],
    stored: Mapping[str, Sequence[NDArray[np.float32]]],
) -> dict[str, float]:
    """Compare the answers of the original weights and of the weights as stored.

    Returns:
        By output: the least cosine over the texts; a text's logits count as one vector, without those of
        special tokens, which training gives no label and decoding never reads. Of logits of whole texts,
        those of a label over all texts count as one vector: a text has but few of them.
    """

    def answers(name: str, index: int, arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        return arrays[index][~np.array(golden.special[index])] if name == "logits" else arrays[index]

    def vectors(
        name: str, arrays: Sequence[NDArray[np.float32]]
    ) -> list[NDArray[np.float32]] | NDArray[np.float32]:
        if name == "sequence_logits":
            return np.stack(arrays).T
        return [answers(name, index, arrays) for index in range(len(golden.texts))]

    return {
        # NumPy's minimum: Python's passes over a NaN that is not the first.
        name: float(
            np.min(
                [
                    _cosine(before, after)
                    for before, after in zip(
                        vectors(name, original[name]), vectors(name, stored[name]), strict=True
                    )
                ]
            )
        )
        for name in original
    }


def raise_if_unfaithful(cosines: Mapping[str, float]) -> None:
    """Refuse weights that were rounded too coarsely.

    Raises:
        FidelityError: A cosine is below ``LEAST_FIDELITY``.
    """
    missed = [f"{name} {cosine:.5f}" for name, cosine in cosines.items() if not cosine >= LEAST_FIDELITY]
    if missed:
        raise FidelityError(
            f"the weights as stored change the answers too much: cosine {', '.join(missed)}, at least "
            f"{LEAST_FIDELITY} is needed; choose a finer --storage"
        )


def _cosine(before: NDArray[np.float32], after: NDArray[np.float32]) -> float:
    first, second = before.astype(np.float64).ravel(), after.astype(np.float64).ravel()
    return float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))


def as_json(golden: GoldenTexts, outputs: Mapping[str, Sequence[NDArray[np.float32]]]) -> dict[str, Any]:
    """Return what ``golden.json`` holds."""
    seconds, types = golden.second_texts, golden.token_type_ids
    return {
        "tolerance": TOLERANCE,
        "texts": list(golden.texts),
        **({"second_texts": list(seconds)} if seconds else {}),
        "input_ids": [list(ids) for ids in golden.input_ids],
        **({"token_type_ids": [list(ids) for ids in types]} if types else {}),
        "outputs": {name: [_rounded(array) for array in arrays] for name, arrays in outputs.items()},
    }


def _rounded(array: NDArray[np.float32]) -> Any:
    """Nested lists with the digits that float32 has, which halves the file."""
    if array.ndim > 1:
        return [_rounded(row) for row in array]
    return [float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for value in array.tolist()]
