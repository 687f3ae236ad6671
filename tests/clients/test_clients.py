"""The client libraries that people have, against a real server: each call gives the numbers of plain HTTP.

Those that take seconds to import are imported by who uses them: every process collects these tests.
"""

from typing import TYPE_CHECKING

import httpx
import numpy as np
import openai
import pytest
import tiktoken
from huggingface_hub import InferenceClient

if TYPE_CHECKING:
    from langchain_openai import OpenAIEmbeddings

MODEL = "multilingual-e5-small-zh-en"
TEXTS = ["怎么申请退款？", "How do I get a refund?", "The weather is fine today."]
# Vectors do not depend on their batch beyond the last bits of float32.
TOLERANCE = 1e-5


@pytest.fixture(scope="session")
def expected(url: str) -> np.ndarray:
    """The vectors of ``TEXTS``, asked for in plain HTTP."""
    return np.array(httpx.post(f"{url}/embed", json={"inputs": TEXTS}).json())


def same(found: object, expected: np.ndarray) -> None:
    """Vectors are those expected."""
    np.testing.assert_allclose(np.array(found, dtype=np.float32), expected, atol=TOLERANCE)


# OpenAI's own SDK


@pytest.fixture
def sdk(url: str) -> openai.OpenAI:
    """A client without retries, so that errors are seen as they are."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_openai_with_its_defaults(sdk: openai.OpenAI, expected: np.ndarray) -> None:
    """It asks for base64 by itself."""
    answer = sdk.embeddings.create(model=MODEL, input=TEXTS)
    same([one.embedding for one in answer.data], expected)
    assert [one.index for one in answer.data] == [0, 1, 2]
    assert answer.usage.total_tokens > len(TEXTS)


def test_openai_with_floats_dimensions_and_one_text(sdk: openai.OpenAI, expected: np.ndarray) -> None:
    """Cut vectors have length one."""
    answer = sdk.embeddings.create(model=MODEL, input=TEXTS[0], encoding_format="float", dimensions=64)
    cut = expected[0, :64] / np.linalg.norm(expected[0, :64])
    same(answer.data[0].embedding, cut)


def test_openai_with_fields_of_ours(sdk: openai.OpenAI, expected: np.ndarray) -> None:
    """A prompt by field or with the model's name."""
    by_field = sdk.embeddings.create(model=MODEL, input=TEXTS[0], extra_body={"input_type": "passage"})
    by_name = sdk.embeddings.create(model=f"{MODEL}:passage", input=TEXTS[0])
    same(by_field.data[0].embedding, np.array(by_name.data[0].embedding))
    assert np.abs(np.array(by_name.data[0].embedding) - expected[0]).max() > 0.01


def test_openai_with_2048_texts(url_of_one_with_a_faq: str) -> None:
    """As many as OpenAI takes; one more is refused with the number and the setting."""
    tiny = openai.OpenAI(base_url=f"{url_of_one_with_a_faq}/v1", api_key="none")
    texts = [f"order {number}" for number in range(2048)]
    assert len(tiny.embeddings.create(model="tiny-embedding", input=texts).data) == 2048
    with pytest.raises(openai.UnprocessableEntityError, match=r"2048.*CONCHE_LIMITS__MAX_INPUTS"):
        tiny.embeddings.create(model="tiny-embedding", input=["a"] * 2049)


def test_openai_with_token_ids(sdk: openai.OpenAI, url_of_one_that_reads_cl100k: str) -> None:
    """Refused unless the server is told whose they are; then the text's own vector."""
    ids = [tiktoken.get_encoding("cl100k_base").encode(text) for text in TEXTS]
    with pytest.raises(openai.UnprocessableEntityError, match="CONCHE_INPUT_IDS") as refused:
        sdk.embeddings.create(model=MODEL, input=ids)
    assert refused.value.code == "token_ids_refused"
    reading = openai.OpenAI(base_url=f"{url_of_one_that_reads_cl100k}/v1", api_key="none")
    answer = reading.embeddings.create(model=MODEL, input=ids)
    texts = sdk.embeddings.create(model=MODEL, input=TEXTS)
    same([one.embedding for one in answer.data], np.array([one.embedding for one in texts.data]))


async def test_openai_asynchronous(url: str, expected: np.ndarray) -> None:
    """The other half of the SDK."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        answer = await client.embeddings.create(model=MODEL, input=TEXTS)
    same([one.embedding for one in answer.data], expected)


def test_openai_lists_models_and_understands_our_errors(sdk: openai.OpenAI) -> None:
    """Each error has the class that the SDK has for it."""
    assert MODEL in [model.id for model in sdk.models.list()]
    assert sdk.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError, match=MODEL) as unknown:
        sdk.embeddings.create(model="text-embedding-3-small", input="a")
    assert (unknown.value.code, unknown.value.param) == ("unknown_model", "model")
    with pytest.raises(openai.UnprocessableEntityError, match=r"input\[1\] is empty"):
        sdk.embeddings.create(model=MODEL, input=["a", ""])


# LangChain


def langchain(url: str, **options: object) -> "OpenAIEmbeddings":
    """As its documentation says to reach another server."""
    from langchain_openai import OpenAIEmbeddings

    return OpenAIEmbeddings(base_url=f"{url}/v1", api_key="none", model=MODEL, max_retries=0, **options)


def test_langchain_told_to_send_text(url: str, expected: np.ndarray) -> None:
    """The switch that our error names."""
    embeddings = langchain(url, check_embedding_ctx_length=False)
    same(embeddings.embed_documents(TEXTS), expected)
    same(embeddings.embed_query(TEXTS[1]), expected[1])


def test_langchain_with_its_defaults_is_told_the_switch(url: str) -> None:
    """It sends ids of OpenAI's vocabulary, which would give vectors without meaning."""
    with pytest.raises(openai.UnprocessableEntityError, match="check_embedding_ctx_length=False"):
        langchain(url).embed_documents(TEXTS)


def test_langchain_with_its_defaults_where_cl100k_is_read(
    url_of_one_that_reads_cl100k: str, expected: np.ndarray
) -> None:
    """The same vectors as of the texts."""
    embeddings = langchain(url_of_one_that_reads_cl100k)
    same(embeddings.embed_documents(TEXTS), expected)
    same(embeddings.embed_query(TEXTS[0]), expected[0])


def test_langchain_sends_a_thousand_texts_at_a_time(url: str) -> None:
    """Its own default size of a request."""
    found = langchain(url, check_embedding_ctx_length=False).embed_documents([f"a {n}" for n in range(1001)])
    assert len(found) == 1001


# LlamaIndex


def test_llama_index_for_text_embeddings_inference(url: str, expected: np.ndarray) -> None:
    """POST /embed with `truncate`."""
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    embedding = TextEmbeddingsInference(
        model_name=MODEL, base_url=url, query_instruction="", text_instruction=""
    )
    same(embedding.get_text_embedding_batch(TEXTS), expected)
    same(embedding.get_query_embedding(TEXTS[0]), expected[0])


def test_llama_index_for_openai(url: str, expected: np.ndarray) -> None:
    """By way of OpenAI's SDK, ten at a time."""
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    embedding = OpenAILikeEmbedding(model_name=MODEL, api_base=f"{url}/v1", api_key="none")
    same(embedding.get_text_embedding_batch(TEXTS), expected)


# Haystack


def test_haystack(url: str, expected: np.ndarray) -> None:
    """One text, and documents."""
    from haystack import Document
    from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
    from haystack.utils import Secret

    reach = {"api_key": Secret.from_token("none"), "api_base_url": f"{url}/v1", "model": MODEL}
    same(OpenAITextEmbedder(**reach).run(TEXTS[0])["embedding"], expected[0])
    documents = OpenAIDocumentEmbedder(**reach, progress_bar=False).run(
        [Document(content=text) for text in TEXTS]
    )["documents"]
    same([document.embedding for document in documents], expected)


async def test_haystack_asynchronous(url: str, expected: np.ndarray) -> None:
    """This one leaves the format to the SDK: base64."""
    from haystack import Document
    from haystack.components.embedders import OpenAIDocumentEmbedder
    from haystack.utils import Secret

    embedder = OpenAIDocumentEmbedder(
        api_key=Secret.from_token("none"), api_base_url=f"{url}/v1", model=MODEL, progress_bar=False
    )
    found = await embedder.run_async([Document(content=text) for text in TEXTS])
    same([document.embedding for document in found["documents"]], expected)


# huggingface_hub


def test_hugging_face_feature_extraction(url: str, expected: np.ndarray) -> None:
    """The URL is used as it stands."""
    client = InferenceClient(f"{url}/embed")
    same(client.feature_extraction(TEXTS[0]), expected[:1])
    raw = client.feature_extraction(TEXTS[0], normalize=False, truncate=True, truncation_direction="left")
    assert abs(np.linalg.norm(raw) - 1) > 0.01
    passage = client.feature_extraction(TEXTS[0], prompt_name="passage")
    assert np.abs(passage - expected[:1]).max() > 0.01


def test_hugging_face_sentence_similarity(url: str, expected: np.ndarray) -> None:
    """One float a sentence."""
    client = InferenceClient(f"{url}/similarity")
    found = client.sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:])
    np.testing.assert_allclose(found, expected[1:] @ expected[0], atol=TOLERANCE)


def test_hugging_face_token_classification(url: str) -> None:
    """The body with `parameters` has the pipeline's answer."""
    client = InferenceClient(f"{url}/ner")
    found = client.token_classification("Angela Merkel lives in Berlin.", aggregation_strategy="simple")
    assert [(one.entity_group, one.word, one.start, one.end) for one in found] == [
        ("PER", "Angela Merkel", 0, 13),
        ("LOC", "Berlin", 23, 29),
    ]
    assert InferenceClient(f"{url}/ner").token_classification("Nothing to see here.") == []


def test_hugging_face_text_classification(url_of_one_that_classifies: str) -> None:
    """All labels, best first; as many as asked for, under the function asked for."""
    client = InferenceClient(f"{url_of_one_that_classifies}/predict")
    found = client.text_classification("refund")
    plain = httpx.post(f"{url_of_one_that_classifies}/predict", json={"inputs": "refund"}).json()
    assert [{"score": one.score, "label": one.label} for one in found] == plain
    assert found[0].label == "refund"
    (best,) = client.text_classification("refund", top_k=1, function_to_apply="none")
    raw = httpx.post(f"{url_of_one_that_classifies}/predict", json={"inputs": "refund", "raw_scores": True})
    assert (best.label, best.score) == ("refund", raw.json()[0]["score"])
    with pytest.raises(Exception, match="inputs is empty"):
        client.text_classification("")


def test_hugging_face_shows_our_errors(url: str) -> None:
    """What is wrong stands in the exception."""
    with pytest.raises(Exception, match="inputs is empty"):
        InferenceClient(f"{url}/embed").feature_extraction("")


# What Java's LangChain4j sends for Hugging Face, in plain HTTP


def test_the_path_of_the_inference_api(url: str, expected: np.ndarray) -> None:
    """`models/NAME/pipeline/feature-extraction`, with options that are ignored."""
    answer = httpx.post(
        f"{url}/models/{MODEL}/pipeline/feature-extraction",
        json={"inputs": TEXTS, "options": {"wait_for_model": True}},
    )
    same(answer.json(), expected)
