"""``conche profile``: where a bundle's time goes, by stage and by operator, in this process."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Final, TypeVar

import click
import numpy as np
import orjson
from numpy.typing import NDArray

from model.runtime.bundle import Bundle, BundleError
from model.runtime.documents import read_documents
from model.runtime.engine import TokenBatch, pad_batch
from model.runtime.entities import EntityFinder
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine
from model.runtime.profiling import OperatorTime, profile_operators
from model.runtime.threads import thread_count
from model.runtime.tokenization import Tokenizer
from service.cli.models import find_bundle, models_dir_option

Result = TypeVar("Result")

_SHAPE: Final = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")
_SEED: Final = 0
_MOST_OPERATORS: Final = 12


class _Stages:
    """The least time of each stage over some repeats, in the order in which they ran."""

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self.seconds: dict[str, float] = {}

    def time(self, stage: str, work: Callable[[], Result]) -> Result:
        """Run ``work`` once, then as often as asked with a clock."""
        result = work()
        for _ in range(self.repeats):
            start = perf_counter()
            result = work()
            taken = perf_counter() - start
            self.seconds[stage] = min(self.seconds.get(stage, taken), taken)
        return result


def _read_shapes(
    context: click.Context, option: click.Parameter, values: Sequence[str]
) -> tuple[tuple[int, int], ...]:
    shapes = []
    for value in values:
        if (match := _SHAPE.fullmatch(value)) is None:
            raise click.BadParameter(f"{value!r} is not like 32x16", context, option)
        shapes.append((int(match[1]), int(match[2])))
    return tuple(shapes)


@click.command()
@click.argument("name")
@click.argument("texts", type=click.File(encoding="utf-8"), required=False)
@models_dir_option
@click.option(
    "--shape",
    "shapes",
    metavar="ROWSxTOKENS",
    callback=_read_shapes,
    multiple=True,
    help="Without TEXTS: a batch of random tokens, such as 32x16; may be given several times.",
)
@click.option(
    "--batch-tokens", type=click.IntRange(min=1), default=2048, show_default=True, help="In a batch of TEXTS."
)
@click.option("--threads", type=click.IntRange(min=1), help="Compute threads; by default all there are.")
@click.option("--repeats", type=click.IntRange(min=1), default=10, show_default=True)
def profile(
    name: str,
    texts: Iterator[str] | None,
    *,
    models_dir: Path,
    shapes: Sequence[tuple[int, int]],
    batch_tokens: int,
    threads: int | None,
    repeats: int,
) -> None:
    """Show what the bundle NAME, or the bundle in folder NAME, spends its time on.

    TEXTS is a file with one text a line (`-` reads standard input); they are packed into batches of like
    length, as the service does. ONNX Runtime computes, in float32, whatever engine the service chooses. Times
    are the least of some repeats: what else runs on the machine can only add to them.
    """
    if (texts is None) == (not shapes):
        raise click.UsageError("give a file of texts, or shapes such as --shape 32x16")
    threads = threads or thread_count()
    try:
        bundle = Bundle.load(find_bundle(models_dir, name), verify_hashes=False)
        if texts is None:
            longest, limit = max(tokens for _, tokens in shapes), bundle.manifest.max_tokens
            if longest > limit:
                raise click.ClickException(f"--shape: {longest} tokens in a row, the model reads {limit}")
            for rows, tokens in shapes:
                batch = _random_batch(bundle, rows, tokens)
                click.echo(f"{rows} rows of {tokens} tokens, {threads} threads, ms")
                _show_operators(bundle, [batch], threads, repeats)
            return
        lines = [line.strip() for line in texts if line.strip()]
        if not lines:
            raise click.ClickException("no texts")
        stages = _Stages(repeats)
        batches = _time_stages(bundle, lines, stages, budget=batch_tokens, threads=threads)
        real = sum(int(batch.attention_mask.sum()) for batch in batches)
        padded = sum(batch.input_ids.size for batch in batches)
        click.echo(
            f"{len(lines)} texts, {real} tokens, {len(batches)} batches, padding x{padded / real:.3f}, "
            f"{threads} threads, ms"
        )
        _show(stages.seconds)
        click.echo("")
        _show_operators(bundle, batches, threads, repeats)
    except (BundleError, ValueError) as error:
        raise click.ClickException(str(error)) from error


def _output(bundle: Bundle) -> str:
    """The one that the service asks for unless a request says otherwise."""
    manifest = bundle.manifest
    if manifest.task == "token-classification":
        return "logits"
    return f"embeddings_{manifest.pooling}{'_normalized' if manifest.normalize else ''}"


def _random_batch(bundle: Bundle, rows: int, tokens: int) -> TokenBatch:
    manifest = bundle.manifest
    drawn = np.random.default_rng(_SEED).integers(0, manifest.architecture.vocab_size, (rows, tokens))
    return pad_batch(list(drawn), manifest.architecture.pad_token_id)


def _time_stages(
    bundle: Bundle, texts: Sequence[str], stages: _Stages, *, budget: int, threads: int
) -> list[TokenBatch]:
    """Time each stage over all texts; returns the batches."""
    manifest = bundle.manifest
    tokenizer = Tokenizer.from_bundle(bundle)
    output = _output(bundle)
    prompt = manifest.prompts.get(manifest.default_prompt_name or "", "")
    finder = EntityFinder.from_bundle(bundle) if output == "logits" else None

    def tokenise() -> list[NDArray[np.int64]]:
        return [
            tokenizer.truncate(text, manifest.max_tokens).input_ids
            for text in tokenizer.tokenize(texts, prefix=prompt)
        ]

    def read() -> list[NDArray[np.int64]]:
        documents = read_documents(texts, tokenizer, max_tokens=manifest.max_tokens)
        return [window.input_ids for document in documents for window in document.windows]

    rows = stages.time("tokenise", tokenise if finder is None else read)
    if not rows:
        raise click.ClickException("the texts have no words")
    groups = _packed([len(row) for row in rows], budget)

    def pad() -> list[TokenBatch]:
        return [pad_batch([rows[n] for n in group], tokenizer.pad_token_id) for group in groups]

    batches = stages.time("pad", pad)
    with closing(OnnxRuntimeEngine(bundle, threads=threads)) as engine:
        arrays = stages.time("run", lambda: [engine.run(batch, [output])[output] for batch in batches])
    results: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(rows)
    for group, array in zip(groups, arrays, strict=True):
        for place, n in enumerate(group):
            results[n] = array[place, : len(rows[n])] if finder is not None else array[place]
    if finder is None:
        stages.time("write JSON", lambda: orjson.dumps(results, option=orjson.OPT_SERIALIZE_NUMPY))
        return batches
    documents = read_documents(texts, tokenizer, max_tokens=manifest.max_tokens)

    def find() -> None:
        logits = iter(results)
        for document in documents:
            finder.find(document, [next(logits) for _ in document.windows])

    stages.time("find entities", find)
    return batches


def _packed(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of rows of like length, in batches of at most ``budget`` tokens, padding included."""
    groups: list[list[int]] = [[]]
    for n in sorted(range(len(lengths)), key=lengths.__getitem__):
        if groups[-1] and (len(groups[-1]) + 1) * lengths[n] > budget:
            groups.append([])
        groups[-1].append(n)
    return groups


def _show(seconds: dict[str, float]) -> None:
    total = sum(seconds.values())
    for name, taken in seconds.items():
        click.echo(f"  {name:<28}{taken * 1e3:>10.2f}{taken / total:>8.1%}")
    click.echo(f"  {'together':<28}{total * 1e3:>10.2f}")


def _show_operators(bundle: Bundle, batches: Sequence[TokenBatch], threads: int, repeats: int) -> None:
    times: list[OperatorTime] = profile_operators(
        bundle, batches, [_output(bundle)], threads=threads, repeats=repeats
    )
    shown = {f"{time.operator} ({time.nodes})": time.seconds for time in times[:_MOST_OPERATORS]}
    if rest := times[_MOST_OPERATORS:]:
        shown[f"others ({sum(time.nodes for time in rest)})"] = sum(time.seconds for time in rest)
    _show(shown)
