"""What the start says about the FAQ, and the request that it suggests."""

import json
import re
import shlex
from pathlib import Path

from service.cli.greeting import greeting, summary
from service.faq.entries import FaqEntry
from service.lifespan import open_services
from service.metrics import Metrics
from tests.service.fakes_http import tiny_settings


async def _greeting(models_folder: Path, faq_file: str) -> tuple[str, dict[str, object]]:
    settings = tiny_settings(models_folder, faq_file=faq_file)
    async with open_services(settings, Metrics()) as services:
        told = {"url": "http://conche.test", "seconds": 0.5}
        return greeting(services, **told), summary(services, **told)  # type: ignore[arg-type]


def _searched(text: str) -> str:
    (line,) = re.findall(r"curl -s \S+/search .*", text)
    return str(json.loads(shlex.split(line)[-1])["query"])


async def test_an_own_faq_is_tried_with_its_own_question(models_folder: Path, tmp_path: Path) -> None:
    """The demo's question finds nothing there; a quotation mark must survive the shell."""
    faq = tmp_path / "faq.jsonl"
    faq.write_text('{"id": "1", "question": "What\'s the \\"return\\" label", "answer": ""}\nnonsense\n{}\n')
    text, fields = await _greeting(models_folder, str(faq))
    assert _searched(text) == 'What\'s the "return" label'
    assert f"1 entry ({faq}; 2 lines left out, see the log)" in text
    assert (fields["faq_entries"], fields["faq_left_out"]) == (1, 2)


async def test_the_demo_is_tried_with_a_question_it_knows(models_folder: Path) -> None:
    """In Chinese, as half of its users read."""
    text, fields = await _greeting(models_folder, "demo")
    assert _searched(text) == "怎么退货？"
    assert re.search(r"FAQ +\d+ entries \(demo\)", text)
    assert fields["faq_left_out"] == 0


async def test_the_demo_is_named_only_for_entries_that_are_the_demos(models_folder: Path) -> None:
    """It fills what is empty: whoever brought entries of his own before would look for his file."""
    async with open_services(tiny_settings(models_folder, faq_file="demo"), Metrics()) as services:
        assert services.catalogue is not None
        (first, second, *others), _ = services.catalogue.store.page("default", limit=1000)
        for entries, collection, said in (
            ([FaqEntry(id="own", question="q", answer="a")], "shop", "2 collections (76 of the demo)"),
            ([second.model_copy(update={"answer": "edited"})], "default", "2 collections (75 of the demo)"),
        ):
            await services.catalogue.upsert(collection, entries)
            assert said in greeting(services, url="http://a", seconds=1)
        await services.catalogue.delete("default", ids=[entry.id for entry in (first, *others)])
        assert re.search(r"FAQ +2 entries in 2 collections\n", greeting(services, url="http://a", seconds=1))


async def test_no_file_is_no_source(models_folder: Path) -> None:
    """`none` in brackets after entries would say that there are none."""
    async with open_services(tiny_settings(models_folder, faq_file="none"), Metrics()) as services:
        assert services.catalogue is not None
        await services.catalogue.upsert("default", [FaqEntry(id="own", question="q", answer="a")])
        assert re.search(r"FAQ +1 entry\n", greeting(services, url="http://a", seconds=1))


async def test_what_runs_each_model_is_told(models_folder: Path) -> None:
    """It is chosen by measuring, and decides how fast all is."""
    async with open_services(tiny_settings(models_folder, faq_store="none"), Metrics()) as services:
        text = greeting(services, url="http://a", seconds=1)
    assert re.search(r"embeddings +tiny-embedding \(.*\) by onnxruntime [\d.]+, float32\n", text)


async def test_streams_are_told(models_folder: Path) -> None:
    """Whoever wonders at the time of one text finds it there."""
    settings = tiny_settings(models_folder, faq_store="none", threads=2, streams=2)
    async with open_services(settings, Metrics()) as services:
        assert "with 2 threads in 2 streams" in greeting(services, url="http://a", seconds=1)
        assert summary(services, url="http://a", seconds=1)["streams"] == 2


async def test_requests_to_paste_bring_a_key_where_one_is_needed(models_folder: Path) -> None:
    """From a variable: a key in the history of a shell is one that leaks."""
    async with open_services(tiny_settings(models_folder, faq_store="none"), Metrics()) as services:
        text = greeting(services, url="http://a", seconds=1, keys=True, metrics_url="http://b")
    commands = re.findall(r"curl -s .*", text)
    assert len(commands) == 3
    for command in commands:
        assert '-H "x-api-key: $CONCHE_API_KEY"' in command
    assert "Metrics: http://b/metrics" in text


async def test_classifiers_are_told_and_tried_and_their_absence_is_no_news(models_folder: Path) -> None:
    """They are off unless set: a line about it at every start would be noise."""
    told = {"url": "http://conche.test", "seconds": 0.5}
    settings = tiny_settings(models_folder, faq_store="none", reranker_bundle="tiny-reranker")
    async with open_services(settings, Metrics()) as services:
        text, fields = greeting(services, **told), summary(services, **told)  # type: ignore[arg-type]
    assert re.search(r"labels +tiny-classifier .*\n +ranking +tiny-reranker ", text)
    assert "/predict -H" in text
    assert "/rerank -H" in text
    assert str(fields["reranker"]).startswith("tiny-reranker (")
    values = {name: getattr(settings, name) for name in settings.model_fields_set}
    del values["classifier_bundle"], values["reranker_bundle"]
    async with open_services(type(settings)(**values), Metrics()) as services:
        assert "/predict" not in greeting(services, **told)  # type: ignore[arg-type]
        assert "/predict" in services.absences


async def test_other_collections_are_counted_and_tried(models_folder: Path) -> None:
    """Without the one that a file fills, the request names one that is there."""
    settings = tiny_settings(models_folder, faq_file="none")
    async with open_services(settings, Metrics()) as services:
        assert services.catalogue is not None
        told = {"url": "http://conche.test", "seconds": 0.5}
        assert "/search" not in greeting(services, **told)  # type: ignore[arg-type]
        await services.catalogue.upsert("shop", [FaqEntry(id="a", question="my order", answer="")])
        text = greeting(services, **told)  # type: ignore[arg-type]
        assert "1 entry in 1 collection\n" in text
        assert _searched(text) == "my order"
        assert '"collection": "shop"' in text
        assert summary(services, **told)["faq_collections"] == 1  # type: ignore[arg-type]
