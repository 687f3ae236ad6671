"""A server that asks for keys, as the client libraries that people have meet it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from conche_client import AuthenticationError, Client, PermissionDeniedError, RateLimitedError, Retries
from service.api_keys import KeyFile, new_key, write_keys
from tests.clients.conftest import HANG_S, serve

MODEL = "multilingual-e5-small-zh-en"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """URL, and keys by name: one that may read, one that may write, one that may read once a minute."""
    folder: Path = tmp_path_factory.mktemp("keys")
    made = {
        "read": new_key("read", ["read"]),
        "write": new_key("write", ["write"]),
        "once": new_key("once", ["read"], requests_per_minute=1),
        "once more": new_key("once-more", ["read"], requests_per_minute=1),
    }
    write_keys(folder / "keys.json", KeyFile(keys=tuple(record for _, record in made.values())))
    process, url = serve(folder, CONCHE_NER_BUNDLE="none", CONCHE_API_KEYS_FILE=str(folder / "keys.json"))
    yield url, {name: key for name, (key, _) in made.items()}
    process.kill()
    process.wait(HANG_S)


def sdk(url: str, key: str) -> openai.OpenAI:
    """OpenAI's client, without retries, so that errors are seen as they are."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def test_openai_sends_its_key_and_tells_its_errors_apart(keyed: tuple[str, dict[str, str]]) -> None:
    """By status, code and message, as it does those of OpenAI."""
    url, keys = keyed
    assert sdk(url, keys["read"]).embeddings.create(model=MODEL, input="a").data
    with pytest.raises(openai.AuthenticationError) as unknown:
        sdk(url, "sk-none").embeddings.create(model=MODEL, input="a")
    assert unknown.value.code == "unauthorized"
    assert unknown.value.type == "authentication_error"
    with pytest.raises(openai.PermissionDeniedError, match="`read`") as lacking:
        sdk(url, keys["write"]).embeddings.create(model=MODEL, input="a")
    assert lacking.value.code == "forbidden"
    once = sdk(url, keys["once"])
    once.embeddings.create(model=MODEL, input="a")
    with pytest.raises(openai.RateLimitError) as late:
        once.embeddings.create(model=MODEL, input="a")
    assert late.value.code == "rate_limited"
    assert int(late.value.response.headers["retry-after-ms"]) > 0


def test_our_own_client_does_too(keyed: tuple[str, dict[str, str]]) -> None:
    """Each refusal is an exception of its own."""
    url, keys = keyed
    with Client(url, api_key=keys["read"]) as conche:
        assert len(conche.embed(["a"])) == 1
    with Client(url) as conche, pytest.raises(AuthenticationError):
        conche.embed(["a"])
    with Client(url, api_key=keys["write"]) as conche, pytest.raises(PermissionDeniedError):
        conche.embed(["a"])
    with Client(url, api_key=keys["once more"], retries=Retries(most=0)) as conche:
        conche.embed(["a"])
        with pytest.raises(RateLimitedError):
            conche.embed(["a"])


def test_huggingface_hub_sends_its_token(keyed: tuple[str, dict[str, str]]) -> None:
    """As a bearer's."""
    url, keys = keyed
    found = InferenceClient(f"{url}/embed", token=keys["read"]).feature_extraction("a")
    assert np.asarray(found).shape == (1, 384)
    with pytest.raises(HfHubHTTPError) as refused:
        InferenceClient(f"{url}/embed", token="hf_none").feature_extraction("a")
    assert refused.value.response.status_code == 401


def test_llama_index_sends_its_key(keyed: tuple[str, dict[str, str]]) -> None:
    """Either of its clients."""
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    url, keys = keyed
    like = OpenAILikeEmbedding(model_name=MODEL, api_base=f"{url}/v1", api_key=keys["read"])
    tei = TextEmbeddingsInference(base_url=url, model_name=MODEL, auth_token=keys["read"])
    for client in (like, tei):
        assert len(client.get_text_embedding("a")) == 384
