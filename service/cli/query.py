"""``conche embed | search | ner``: one answer per text as a JSON line, in this process, without a server."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, get_args

import click
import orjson

from model.runtime.aggregation import PipelineStrategy
from model.runtime.entities import EntityOptions, Strategy
from model.runtime.offset_units import OffsetUnit
from service.admission import TextLimits
from service.cli import process
from service.cli.entity_pages import entity_page
from service.cli.options import (
    EMBED_SETTINGS,
    NER_SETTINGS,
    NO_CLASSIFIERS,
    QUERY_SETTINGS,
    SEARCH_SETTINGS,
    read_settings,
    settings_flags,
)
from service.errors import InputTooLongError, ServiceError
from service.faq.index import Mode
from service.faq.source_file import DEFAULT_COLLECTION
from service.lifespan import Services, StartupError, open_services
from service.log_config import configure_logging
from service.metrics import Metrics
from service.schemas import EmbedRequest
from service.settings import OFF, Settings

Answers = Callable[[Services, list[str]], Awaitable[Sequence[dict[str, Any]]]]
Write = Callable[[Services, dict[str, Any]], None]

# Lines of standard input answered together: enough to fill batches, few enough that output flows.
_GROUP: Final = 256

_texts = click.argument("texts", nargs=-1, required=True, metavar="TEXT...|-")
_texts_if_any = click.argument("texts", nargs=-1, metavar="TEXT...|-")


@click.command()
@_texts
@click.option("--pooling", type=click.Choice(["cls", "mean"]), help="How token vectors become one.")
@click.option("--prompt-name", help="The model's prompt to put before each text; `none` for none.")
@click.option("--truncate", is_flag=True, help="Cut texts that are too long instead of refusing them.")
@click.option("--dimensions", type=click.IntRange(min=1), help="Keep this many numbers of each vector.")
@settings_flags(EMBED_SETTINGS | QUERY_SETTINGS)
def embed(
    texts: tuple[str, ...],
    pooling: str | None,
    prompt_name: str | None,
    dimensions: int | None,
    *,
    truncate: bool,
    **flags: str | None,
) -> None:
    """Embed each TEXT, or with - each line of standard input; one JSON line each."""
    settings = read_settings({**flags, **NO_CLASSIFIERS, "ner_bundle": OFF, "faq_store": OFF})
    request = {"pooling": pooling, "prompt_name": prompt_name, "dimensions": dimensions}

    async def answer(services: Services, group: list[str]) -> Sequence[dict[str, Any]]:
        if services.embedder is None:
            raise services.absence("/embed")
        body = EmbedRequest.model_validate({"inputs": group, **request})
        options = body.options(
            services.embedder.manifest,
            model_prompt=None,
            truncate_unless_said=truncate or settings.truncate,
            read_empty=settings.empty_input == "read",
        )
        result = await services.embedder.embed(group, options)
        return [
            {"text": text, "tokens": tokens, "tokens_cut": cut, "embedding": vector}
            | ({"empty": True} if place in result.empty else {})
            for place, (text, tokens, cut, vector) in enumerate(
                zip(group, result.tokens, result.truncated, result.vectors, strict=True)
            )
        ]

    _answer_all(_read(texts), settings, answer)


@click.command()
@_texts
@click.option("--top-k", type=click.IntRange(min=1), default=5, show_default=True, help="Hits per query.")
@click.option("--min-score", type=click.FloatRange(0, 1), help="Leave out hits that score less.")
@click.option(
    "--collection",
    "-c",
    default=DEFAULT_COLLECTION,
    show_default=True,
    metavar="NAME",
    help="Which one is searched.",
)
@click.option(
    "--mode",
    type=click.Choice(["hybrid", "dense", "lexical"]),
    default="hybrid",
    show_default=True,
    help="What decides the order: meaning and words, meaning alone, words alone.",
)
@settings_flags(SEARCH_SETTINGS | QUERY_SETTINGS)
def search(
    texts: tuple[str, ...],
    top_k: int,
    min_score: float | None,
    collection: str,
    mode: Mode,
    **flags: str | None,
) -> None:
    """Look up each TEXT, or with - each line of standard input, in the FAQ; one JSON line each.

    The data folder's collections are searched; with --faq-file that file alone, and nothing is kept of it.
    """

    async def answer(services: Services, group: list[str]) -> Sequence[dict[str, Any]]:
        if services.catalogue is None:
            raise services.absence("/search")
        found = await services.catalogue.search(
            collection,
            group,
            mode=mode,
            top_k=top_k,
            min_score=min_score,
            read_empty=settings.empty_input == "read",
        )
        return [
            {
                "query": text,
                "hits": [
                    {
                        "id": one.hit.id,
                        "question": one.hit.question,
                        "answer": one.hit.answer,
                        "score": one.confidence,
                    }
                    for one in result.hits
                ],
                "default_answer": result.default_answer,
            }
            for text, result in zip(group, found, strict=True)
        ]

    settings = read_settings({**flags, **NO_CLASSIFIERS, "ner_bundle": OFF})
    if flags["faq_file"] is None and settings.data_path().exists():
        _answer_all(_read(texts), settings, answer)
    else:
        # A look into a file must not change what a server on the same folder answers, and one into the FAQ
        # that comes along must not leave a data folder behind.
        with TemporaryDirectory() as folder:
            _answer_all(_read(texts), settings, answer, faq_folder=Path(folder))


def _entity_types(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> frozenset[str] | None:
    if value is None:
        return None
    types = frozenset(name.strip() for name in value.split(",") if name.strip())
    if not types:
        raise click.BadParameter(f"{value!r} names no entity type")
    return types


@click.command()
@_texts_if_any
@click.option("--model", help="Which of several of --ner-bundle, by name; the first, if not said.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Leave out entities that score less; the spans of the others do not change.",
)
@click.option(
    "--labels", callback=_entity_types, help="Keep entities of these types only, for instance PER,LOC."
)
@click.option(
    "--offset-unit",
    type=click.Choice(get_args(OffsetUnit)),
    default="code-points",
    show_default=True,
    help="What start and end count: code points (Python), UTF-16 units (JavaScript, Java, C#) or bytes of "
    "UTF-8 (Go, Rust).",
)
@click.option(
    "--aggregation-strategy",
    "strategy",
    type=click.Choice(["viterbi", *get_args(PipelineStrategy)]),
    default="viterbi",
    show_default=True,
    help="How the labels of tokens become entities: the best sequence that the label scheme allows, or as "
    "the Hugging Face pipeline of that name.",
)
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file that is one text, in UTF-8; repeatable, before the others.",
)
@click.option(
    "--html",
    "html_page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a page with the entities marked in the texts instead of JSON lines.",
)
@settings_flags(NER_SETTINGS | QUERY_SETTINGS)
def ner(
    *,
    texts: tuple[str, ...],
    model: str | None,
    threshold: float,
    labels: frozenset[str] | None,
    offset_unit: OffsetUnit,
    strategy: Strategy,
    files: tuple[Path, ...],
    html_page: Path | None,
    **flags: str | None,
) -> None:
    """Find the named entities of each TEXT, or with - of each line of standard input; one JSON line each."""
    if not texts and not files:
        raise click.UsageError("Missing argument 'TEXT...|-'.")
    if html_page and (offset_unit != "code-points" or strategy == "none"):
        raise click.UsageError("--html marks whole entities; it takes no --offset-unit and no strategy none.")
    settings = read_settings({**flags, **NO_CLASSIFIERS, "embedding_bundle": OFF, "faq_store": OFF})
    options = EntityOptions(threshold=threshold, labels=labels, strategy=strategy)

    async def answer(services: Services, group: list[str]) -> Sequence[dict[str, Any]]:
        tagged = await services.tagger_named(model).tag(group, options, offset_unit=offset_unit)
        return [
            {
                "text": text,
                "entities": [
                    {
                        "start": found.start,
                        "end": found.end,
                        "text": found.text,
                        "label": found.label,
                        "score": found.score,
                    }
                    for found in result.entities
                ],
            }
            for text, result in zip(group, tagged, strict=True)
        ]

    everything = chain(map(_read_whole, files), _read(texts))
    if html_page is None:
        _answer_all(everything, settings, answer)
        return
    with entity_page(
        html_page,
        title=f"Named entities by {model or next(iter(settings.bundle_names('ner_bundle')), OFF)}",
        names=list(map(str, files)),
    ) as page:

        def write(services: Services, record: dict[str, Any]) -> None:
            page.add(record, services.tagger_named(model).labels)

        _answer_all(everything, settings, answer, write=write)


def _print_line(_services: Services, record: dict[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")


def _answer_all(
    texts: Iterator[str],
    settings: Settings,
    answer: Answers,
    *,
    write: Write = _print_line,
    faq_folder: Path | None = None,
) -> None:
    configure_logging("warning", "text")
    try:
        asyncio.run(_run(texts, settings, answer, write, faq_folder))
    except StartupError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        process.leave(128 + signal.SIGINT)


async def _run(
    texts: Iterator[str], settings: Settings, answer: Answers, write: Write, faq_folder: Path | None
) -> None:
    limits = TextLimits(
        _GROUP,
        settings.limits.max_text_characters,
        sys.maxsize,
        read_empty=settings.empty_input == "read",
    )
    done = 0
    async with AsyncExitStack() as stack:
        cache = cache_folder(settings) or Path(stack.enter_context(TemporaryDirectory()))
        services = await stack.enter_async_context(
            open_services(settings, Metrics(), faq_folder=faq_folder, cache_folder=cache)
        )
        while group := list(islice(texts, _GROUP)):
            try:
                limits.admit(group, param="texts")
                records = await answer(services, group)
            except ServiceError as error:
                raise click.ClickException(_complaint(error, done)) from error
            done += len(group)
            for record in records:
                write(services, record)
            sys.stdout.buffer.flush()


def cache_folder(settings: Settings) -> Path | None:
    """Where a service keeps its measurements, if it has a data folder here; else the user's cache.

    None for a user who has no home, as of a container that runs under any number. These commands only read
    texts, and leave nothing in the folder where they are called.
    """
    if settings.data_path().is_dir():
        return settings.data_path()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))  # to be ignored unless absolute
    if not cache.is_absolute():
        try:
            cache = Path("~/.cache").expanduser()
        except RuntimeError:
            return None
    return cache / "conche"


def _complaint(error: ServiceError, done: int) -> str:
    """The error in words of the command line; texts are numbered from 1, over all groups."""
    if error.index is None:
        return error.message
    text = f"text {done + error.index + 1}"
    if isinstance(error, InputTooLongError) and error.setting == "truncate":
        return (
            f"{text} has {error.tokens} tokens, prompt and special tokens included, and the model reads "
            f"{error.limit}; shorten it, or give --truncate to have the rest cut off"
        )
    place = f"{error.param}[{error.index}]"
    return error.message.replace(place, text) if place in error.message else f"{text}: {error.message}"


def _read(texts: tuple[str, ...]) -> Iterator[str]:
    """The arguments; for ``-`` the lines of standard input, in UTF-8.

    Blank lines too, which are refused unless they are to be read: left out, they would shift the answers
    against the lines.
    """
    for text in texts:
        if text != "-":
            yield text
            continue
        for line in sys.stdin.buffer:
            yield line.decode("utf-8-sig", errors="surrogateescape").strip("\r\n")


def _read_whole(path: Path) -> str:
    """A file's text as it is, line ends too; what is not UTF-8 is refused later, as in standard input."""
    return path.read_bytes().decode("utf-8-sig", errors="surrogateescape")
