"""Writes tiny but valid bundles, for tests: no torch, a few kilobytes, known answers.

Embedding bundle ("tiny-embedding", 32 dimensions, 64 tokens): each token has a fixed vector; a token's
hidden state is that vector plus half the mean over the text's tokens. Texts that share words are therefore
close, and padding would show if the mask were ignored.

NER bundle ("tiny-ner", PER/LOC/ORG in BIO, 64 tokens): each token has a label, looked up in ``NER_LABELS``
(first pieces and Han characters) or O; context plays no part. ``张三`` and ``Tim Cook`` are PER, ``北京`` and
``Paris`` LOC, ``华为`` and ``Apple`` ORG.

Classifier bundle ("tiny-classifier", refund/delivery/other, softmax): each token votes for a label, looked up
in ``LABEL_WORDS``, and one in a pair's second text a little for "other" as well; logits are the sums.

Cross-encoder bundle ("tiny-reranker", one label): the logit is the dot product of the sums of both texts'
token vectors, so that texts score by the words that they share; a text by itself gets -1.

All use the tokenizer of ``tiny_tokenizer``: WordPiece over ``WORDS``, any other ASCII word spelt in letters,
one token per Han character, unknown ones ``[UNK]``.
"""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from model.runtime.bundle import FileEntry, Manifest

HIDDEN_SIZE = 32
MAX_TOKENS = 64
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG")

NER_LABELS = {
    **dict.fromkeys(["Tim", "John", "Alice", "Mary", "张", "王", "李"], "B-PER"),
    **dict.fromkeys(["Cook", "Smith", "三", "明", "伟"], "I-PER"),
    **dict.fromkeys(["Paris", "London", "Berlin", "Tokyo", "New", "北", "上", "广", "深"], "B-LOC"),
    **dict.fromkeys(["York", "京", "海", "州", "圳"], "I-LOC"),
    **dict.fromkeys(["Apple", "Google", "华", "腾"], "B-ORG"),
    **dict.fromkeys(["Inc", "为", "讯"], "I-ORG"),
}
TEXT_LABELS = ("refund", "delivery", "other")
LABEL_WORDS = {
    **dict.fromkeys(["refund", "return", "退", "货"], "refund"),
    **dict.fromkeys(["delivery", "shipping", "物", "流", "配", "送"], "delivery"),
}
_SENTENCES = """
    we visited works in at and the is a how do I my return order refund where shipping delivery password
    reset account query passage hello world cat dog sat on mat lives from to of
"""
WORDS = _SENTENCES.split()
HAN = "今年去了和在工作学大公司我想退货怎么订单物流配送密码重置账户你好世界的是人中国住"

_EMBEDDING_TEXTS = ["hello world", "how do I return my order", "怎么退货", "Paris, London and Tokyo.", "a"]
_NER_TEXTS = ["Tim Cook works in Paris.", "张三在北京工作。", "hello", "Apple and Google, London"]

_CLASSIFIED = [
    ("how do I return my order", None),
    ("shipping", None),
    ("怎么退货", "物流配送"),
    ("hello", "refund, refund and delivery"),
]


def tiny_tokenizer() -> Tokenizer:
    """BERT-style: ``[PAD]`` 0, ``[UNK]`` 1, ``[CLS]`` 2 before each text and ``[SEP]`` 3 after it."""
    letters = string.ascii_letters + string.digits
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *NER_LABELS, *WORDS, *HAN]
    pieces += [*letters, *(f"##{letter}" for letter in letters), *string.punctuation, *"，。、！？；：“”（）"]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    return tokenizer


def write_tiny_embedding_bundle(path: Path, *, name: str = "tiny-embedding", seed: int = 7) -> Path:
    """Write the embedding bundle into folder ``path`` (made if missing) and return ``path``."""
    tokenizer = tiny_tokenizer()
    rng = np.random.default_rng(seed)
    words = rng.standard_normal((tokenizer.get_vocab_size(), HIDDEN_SIZE)).astype(np.float32)
    types = np.zeros((2, HIDDEN_SIZE), np.float32)
    mix = np.eye(HIDDEN_SIZE, dtype=np.float32) / 2
    tables = {"embeddings.word": words, "embeddings.token_type": types}
    path.mkdir(parents=True, exist_ok=True)
    save_file(tables, path / "embeddings.safetensors")
    save_file({"encoder.mix": mix}, path / "encoder.safetensors")
    nodes = [
        *_embed_nodes(),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last_axis"], ["mask3"]),
        helper.make_node("Mul", ["embedded", "mask3"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "axis1"], ["total"], keepdims=1),
        helper.make_node("ReduceSum", ["mask3", "axis1"], ["count"], keepdims=1),
        helper.make_node("Div", ["total", "count"], ["context"]),
        helper.make_node("MatMul", ["context", "encoder.mix"], ["mixed"]),
        helper.make_node("Add", ["embedded", "mixed"], ["last_hidden_state"]),
        helper.make_node("Gather", ["last_hidden_state", "zero"], ["embeddings_cls"], axis=1),
        helper.make_node("Mul", ["last_hidden_state", "mask3"], ["masked_state"]),
        helper.make_node("ReduceSum", ["masked_state", "axis1"], ["state_total"], keepdims=0),
        helper.make_node("Squeeze", ["count", "last_axis"], ["count2"]),
        helper.make_node("Div", ["state_total", "count2"], ["embeddings_mean"]),
        *_normalize_nodes("embeddings_cls"),
        *_normalize_nodes("embeddings_mean"),
    ]
    pooled = [
        helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", HIDDEN_SIZE])
        for output in (
            "embeddings_cls",
            "embeddings_mean",
            "embeddings_cls_normalized",
            "embeddings_mean_normalized",
        )
    ]
    hidden = helper.make_tensor_value_info(
        "last_hidden_state", TensorProto.FLOAT, ["batch", "sequence", HIDDEN_SIZE]
    )
    constants = [
        helper.make_tensor("axis1", TensorProto.INT64, [1], [1]),
        helper.make_tensor("last_axis", TensorProto.INT64, [1], [-1]),
        helper.make_tensor("zero", TensorProto.INT64, [], [0]),
    ]
    _write_graph(path, nodes, [hidden, *pooled], constants)

    input_ids = [tokenizer.encode(text).ids for text in _EMBEDDING_TEXTS]
    outputs: dict[str, list[object]] = {"embeddings_mean_normalized": [], "embeddings_cls_normalized": []}
    for ids in input_ids:
        embedded = words[ids]
        state = embedded + embedded.mean(axis=0) @ mix
        for output, vector in (("mean", state.mean(axis=0)), ("cls", state[0])):
            outputs[f"embeddings_{output}_normalized"].append((vector / np.linalg.norm(vector)).tolist())
    _write_golden(path, _EMBEDDING_TEXTS, input_ids, outputs)
    return _finish(
        path,
        tokenizer,
        {
            "name": name,
            "task": "embedding",
            "pooling": "mean",
            "normalize": True,
            "dimensions": HIDDEN_SIZE,
            "prompts": {"query": "query: ", "passage": "passage: "},
            "default_prompt_name": "query",
        },
    )


def write_tiny_ner_bundle(path: Path, *, name: str = "tiny-ner") -> Path:
    """Write the token-classification bundle into folder ``path`` (made if missing) and return ``path``."""
    tokenizer = tiny_tokenizer()
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    words = np.zeros((len(vocabulary), HIDDEN_SIZE), np.float32)
    for piece, index in vocabulary.items():
        # Certainty differs from token to token, so that scores do: about 0.85 to 0.999.
        words[index, LABELS.index(NER_LABELS.get(piece, "O"))] = 3.6 + (index * 7 % 10) / 2
    types = np.zeros((2, HIDDEN_SIZE), np.float32)
    head = np.eye(len(LABELS), HIDDEN_SIZE, dtype=np.float32)
    path.mkdir(parents=True, exist_ok=True)
    save_file({"embeddings.word": words, "embeddings.token_type": types}, path / "embeddings.safetensors")
    save_file({"head.weight": head}, path / "encoder.safetensors")
    nodes = [
        *_embed_nodes(),
        helper.make_node("Transpose", ["head.weight"], ["head_t"], perm=[1, 0]),
        helper.make_node("MatMul", ["embedded", "head_t"], ["logits"]),
    ]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", len(LABELS)])
    _write_graph(path, nodes, [logits], [])

    input_ids = [tokenizer.encode(text).ids for text in _NER_TEXTS]
    outputs: dict[str, list[object]] = {"logits": [(words[ids] @ head.T).tolist() for ids in input_ids]}
    _write_golden(path, _NER_TEXTS, input_ids, outputs)
    return _finish(path, tokenizer, {"name": name, "task": "token-classification", "labels": LABELS})


def write_tiny_classifier_bundle(
    path: Path, *, name: str = "tiny-classifier", activation: str = "softmax"
) -> Path:
    """Write the classifier's bundle into folder ``path`` (made if missing) and return ``path``."""
    tokenizer = tiny_tokenizer()
    words = np.zeros((tokenizer.get_vocab_size(), HIDDEN_SIZE), np.float32)
    for piece, index in tokenizer.get_vocab().items():
        # Certainty differs from token to token, so that scores do.
        words[index, TEXT_LABELS.index(LABEL_WORDS.get(piece, "other"))] = 0.3 + (index * 7 % 10) / 8
    words[:4] = 0  # special tokens
    types = np.zeros((2, HIDDEN_SIZE), np.float32)
    types[1, TEXT_LABELS.index("other")] = 0.125
    head = np.eye(len(TEXT_LABELS), HIDDEN_SIZE, dtype=np.float32)
    path.mkdir(parents=True, exist_ok=True)
    save_file({"embeddings.word": words, "embeddings.token_type": types}, path / "embeddings.safetensors")
    save_file({"head.weight": head}, path / "encoder.safetensors")
    nodes = [
        *_embed_nodes(),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last_axis"], ["mask3"]),
        helper.make_node("Mul", ["embedded", "mask3"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "axis1"], ["total"], keepdims=0),
        helper.make_node("Transpose", ["head.weight"], ["head_t"], perm=[1, 0]),
        helper.make_node("MatMul", ["total", "head_t"], ["sequence_logits"]),
    ]

    def logits(ids: list[int], types_of_tokens: list[int]) -> list[float]:
        return ((words[ids] + types[types_of_tokens]).sum(axis=0) @ head.T).tolist()

    return _finish_classifier(
        path, tokenizer, nodes, logits, name=name, labels=TEXT_LABELS, activation=activation
    )


def write_tiny_reranker_bundle(path: Path, *, name: str = "tiny-reranker") -> Path:
    """Write the cross-encoder's bundle into folder ``path`` (made if missing) and return ``path``."""
    tokenizer = tiny_tokenizer()
    words = np.random.default_rng(9).standard_normal((tokenizer.get_vocab_size(), HIDDEN_SIZE))
    words = words.astype(np.float32)
    words[:4] = 0  # special tokens
    scale = np.array([1 / HIDDEN_SIZE], np.float32)
    types = np.zeros((2, HIDDEN_SIZE), np.float32)
    path.mkdir(parents=True, exist_ok=True)
    save_file({"embeddings.word": words, "embeddings.token_type": types}, path / "embeddings.safetensors")
    save_file({"head.scale": scale}, path / "encoder.safetensors")
    nodes = [
        *_embed_nodes(),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["token_type_ids"], ["type_float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["mask", "type_float"], ["second"]),
        helper.make_node("Sub", ["mask", "second"], ["first"]),
    ]
    for text in ("first", "second"):
        nodes += [
            helper.make_node("Unsqueeze", [text, "last_axis"], [f"{text}3"]),
            helper.make_node("Mul", ["embedded", f"{text}3"], [f"{text}_masked"]),
            helper.make_node("ReduceSum", [f"{text}_masked", "axis1"], [f"{text}_total"], keepdims=0),
        ]
    nodes += [
        helper.make_node("Mul", ["first_total", "second_total"], ["products"]),
        helper.make_node("ReduceSum", ["products", "last_axis"], ["dot"], keepdims=1),
        helper.make_node("Mul", ["dot", "head.scale"], ["scaled"]),
        helper.make_node("Sub", ["scaled", "one"], ["sequence_logits"]),
    ]

    def logits(ids: list[int], types_of_tokens: list[int]) -> list[float]:
        second = np.array(types_of_tokens, dtype=bool)
        first_total, second_total = (words[ids][part].sum(axis=0) for part in (~second, second))
        return [float(first_total @ second_total / HIDDEN_SIZE - 1)]

    return _finish_classifier(
        path, tokenizer, nodes, logits, name=name, labels=("relevance",), activation="sigmoid"
    )


def refresh_manifest(path: Path, **changes: object) -> None:
    """Rewrite ``manifest.json`` after a test changed files in ``path``: new digests, changed fields."""
    content = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    content.update(changes)
    content["files"] = _file_entries(path)
    (path / "manifest.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def external_tensor(path: Path, name: str) -> TensorProto:
    """An ONNX initialiser whose bytes are those of tensor ``name`` inside the safetensors file ``path``."""
    raw = path.read_bytes()
    header_length = int.from_bytes(raw[:8], "little")
    entry = json.loads(raw[8 : 8 + header_length])[name]
    start, end = entry["data_offsets"]
    types = {
        "F32": TensorProto.FLOAT,
        "F16": TensorProto.FLOAT16,
        "I8": TensorProto.INT8,
        "U8": TensorProto.UINT8,
    }
    tensor = TensorProto(name=name, data_type=types[entry["dtype"]], dims=entry["shape"])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (
        ("location", path.name),
        ("offset", 8 + header_length + start),
        ("length", end - start),
    ):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _embed_nodes() -> list[object]:
    return [
        helper.make_node("Gather", ["embeddings.word", "input_ids"], ["word"], axis=0),
        helper.make_node("Gather", ["embeddings.token_type", "token_type_ids"], ["type"], axis=0),
        helper.make_node("Add", ["word", "type"], ["embedded"]),
    ]


def _normalize_nodes(name: str) -> list[object]:
    return [
        helper.make_node("ReduceL2", [name, "last_axis"], [f"{name}_norm"], keepdims=1),
        helper.make_node("Div", [name, f"{name}_norm"], [f"{name}_normalized"]),
    ]


def _write_graph(path: Path, nodes: list[object], outputs: list[object], constants: list[object]) -> None:
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    weights = []
    for file_name in ("embeddings.safetensors", "encoder.safetensors"):
        raw = (path / file_name).read_bytes()
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        weights += [external_tensor(path / file_name, name) for name in header]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, [*weights, *constants])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (path / "graph.onnx").write_bytes(model.SerializeToString())


def _write_golden(
    path: Path, texts: list[str], input_ids: list[list[int]], outputs: dict[str, list[object]]
) -> None:
    golden = {"tolerance": 1e-4, "texts": texts, "input_ids": input_ids, "outputs": outputs}
    (path / "golden.json").write_text(json.dumps(golden, ensure_ascii=False), encoding="utf-8")


def _finish_classifier(
    path: Path,
    tokenizer: Tokenizer,
    nodes: list[object],
    logits: Callable[[list[int], list[int]], list[float]],
    *,
    name: str,
    labels: tuple[str, ...],
    activation: str,
) -> Path:
    output = helper.make_tensor_value_info("sequence_logits", TensorProto.FLOAT, ["batch", len(labels)])
    constants = [
        helper.make_tensor("axis1", TensorProto.INT64, [1], [1]),
        helper.make_tensor("last_axis", TensorProto.INT64, [1], [-1]),
        helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]),
    ]
    _write_graph(path, nodes, [output], constants)
    encoded = [
        tokenizer.encode(first) if second is None else tokenizer.encode(first, second)
        for first, second in _CLASSIFIED
    ]
    golden = {
        "tolerance": 1e-4,
        "texts": [first for first, _ in _CLASSIFIED],
        "second_texts": [second for _, second in _CLASSIFIED],
        "input_ids": [one.ids for one in encoded],
        "token_type_ids": [one.type_ids for one in encoded],
        "outputs": {"sequence_logits": [logits(one.ids, one.type_ids) for one in encoded]},
    }
    (path / "golden.json").write_text(json.dumps(golden, ensure_ascii=False), encoding="utf-8")
    fields = {
        "name": name,
        "task": "sequence-classification",
        "labels": labels,
        "label_activation": activation,
        "pair_token_types": True,
    }
    return _finish(path, tokenizer, fields, type_vocab_size=2)


def _finish(path: Path, tokenizer: Tokenizer, fields: dict[str, object], *, type_vocab_size: int = 0) -> Path:
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "parity.json").write_text("{}\n", encoding="utf-8")
    (path / "LICENSE").write_text("Made for tests.\n", encoding="utf-8")
    manifest = Manifest.model_validate(
        {
            "architecture": {
                "family": "conche",
                "hidden_size": HIDDEN_SIZE,
                "num_hidden_layers": 0,
                "num_attention_heads": 1,
                "intermediate_size": HIDDEN_SIZE,
                "vocab_size": tokenizer.get_vocab_size(),
                "max_position_embeddings": MAX_TOKENS,
                "hidden_act": "gelu",
                "position_embedding": "learned",
                "position_offset": 0,
                "type_vocab_size": type_vocab_size,
                "norm_placement": "post",
                "embedding_layer_norm": False,
                "scale_embeddings": False,
                "layer_norm_eps": 1e-12,
                "pad_token_id": 0,
                "parameters": tokenizer.get_vocab_size() * HIDDEN_SIZE,
            },
            "source": {"name": "made for tests"},
            "licence": "Apache-2.0",
            "languages": ["en", "zh"],
            "description": "A tiny model with known answers.",
            "max_tokens": MAX_TOKENS,
            "precision": {
                "compute": "float32",
                "storage": {"embeddings": "float32", "linear": "float32", "other": "float32"},
            },
            "files": _file_entries(path),
            "created": "2026-01-01",
            "conche_version": "0.1.0",
            **fields,
        }
    )
    (path / "manifest.json").write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
    return path


def _file_entries(path: Path) -> dict[str, dict[str, object]]:
    return {
        file.name: FileEntry(
            sha256=hashlib.sha256(file.read_bytes()).hexdigest(), size=file.stat().st_size
        ).model_dump()
        for file in sorted(path.iterdir())
        if file.name != "manifest.json"
    }
