"""From measurements to figures: medians, spreads and ratios, as JSON, tables and pictures."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Any, Final

from comparison.figures import Spread, ratio, readable, spread
from comparison.workloads import BATCHES, BULK, MANY, ONE, OVERLOAD, SEARCH, SHORT, START, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

CONCHE: Final = "Conche"
CONCHE_DEFAULT: Final = "Conche, default models"
CONCHE_FLOAT32: Final = "Conche, float32"
CONCHE_STREAMS: Final = "Conche, two streams"
LIMIT: Final = "bare engine, packed"
TEI: Final = "TEI's schedule"
INFINITY: Final = "Infinity"
SENTENCE_TRANSFORMERS: Final = "sentence-transformers"
NOT_YET: Final = "No run has been recorded yet; `make bench` records one."
_KEPT: Final = (
    "texts_per_s", "tokens_per_s", "p50_ms", "p99_ms", "padding", "rss_mib", "refused", "refused_p50_ms",
    "refused_p99_ms", "kept", "start_s",
)  # fmt: skip
_COLOURS: Final = {"Conche": "#0b62a4", "bare": "#7a8793"}
_OTHER_COLOUR: Final = "#d9730d"
_INK: Final = "#1c2733"


def summary(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Put the rounds of each contestant at each workload together.

    Returns:
        By workload and contestant: each figure as ``[median, low, high]``, ``rounds``, what failed, and
        ``ratio``, how many times its throughput Conche's was, over the rounds that both have, with two
        streams ``streams_ratio``.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for workload, contestant in dict.fromkeys((one["workload"], one["contestant"]) for one in lines):
        own = [one for one in lines if (one["workload"], one["contestant"]) == (workload, contestant)]
        done = [one for one in own if "error" not in one]
        figures: dict[str, Any] = {"rounds": len(done)}
        for name in _KEPT:
            values = [one[name] for one in done if one.get(name) is not None]
            if values and any(values):
                figures[name] = _as_list(spread(values))
        errors = [one["error"] for one in own if "error" in one]
        failed = {what: count for one in done for what, count in one.get("failed", {}).items()}
        if errors or failed:
            figures["failed"] = errors[0] if errors else str(failed)
        found.setdefault(workload, {})[contestant] = figures
    for workload, contestants in found.items():
        for contestant, figures in contestants.items():
            ours, theirs = _pairs(lines, workload, _ours(contestants), contestant)
            if ours and contestant != _ours(contestants):
                figures["ratio"] = _as_list(ratio(ours, theirs))
            ours, theirs = _pairs(lines, workload, CONCHE_STREAMS, contestant)
            if ours and not contestant.startswith(CONCHE):
                figures["streams_ratio"] = _as_list(ratio(ours, theirs))
    return found


def _ours(contestants: Iterable[str]) -> str:
    return next((name for name in contestants if name.startswith(CONCHE)), CONCHE)


def _pairs(
    lines: Sequence[Mapping[str, Any]], workload: str, ours: str, theirs: str
) -> tuple[list[float], list[float]]:
    """Throughput of two contestants in the rounds that both have."""
    rates = {
        (one["contestant"], one["round"]): one["texts_per_s"]
        for one in lines
        if one["workload"] == workload and one.get("texts_per_s")
    }
    rounds = sorted(number for name, number in rates if name == theirs and (ours, number) in rates)
    return [rates[ours, number] for number in rounds], [rates[theirs, number] for number in rounds]


def _as_list(figure: Spread) -> list[float]:
    return [round(value, 4) for value in (figure.median, figure.low, figure.high)]


def _spread(figures: Mapping[str, Any], name: str) -> Spread | None:
    return Spread(*figures[name]) if name in figures else None


def _percent(figures: Mapping[str, Any], name: str) -> Spread | None:
    return Spread(*(100 * value for value in figures[name])) if name in figures else None


def _shown(figures: Mapping[str, Any], name: str) -> str:
    figure = _spread(figures, name)
    return "" if figure is None else str(figure)


# Against the targets


class _Targets:
    """Collects what the project set out to reach, and what a run gave."""

    def __init__(self, results: Mapping[str, Any]) -> None:
        self.rows: list[tuple[str, str, str]] = []
        self._figures: Mapping[str, Mapping[str, Mapping[str, Any]]] = results["workloads"]

    def add(self, what: str, target: str, value: Spread | float | None, unit: str = "") -> None:
        """Add a row, if there is something to tell."""
        if value is not None:
            self.rows.append(
                (what, target, f"{value if isinstance(value, Spread) else readable(value)}{unit}")
            )

    def of(self, workload: str, contestant: str) -> Mapping[str, Any]:
        """Figures of one contestant; empty if there are none."""
        return self._figures.get(workload, {}).get(contestant, {})

    def best(self, workload: str, beginning: str) -> tuple[str, Mapping[str, Any]] | None:
        """The quickest of those whose names begin so."""
        others = [
            (name, one)
            for name, one in self._figures.get(workload, {}).items()
            if name.startswith(beginning) and "ratio" in one
        ]
        return max(others, key=lambda pair: pair[1]["texts_per_s"][0], default=None)

    def throughput(self) -> None:
        """Ours over others'."""
        for workload in (MANY, BATCHES):
            for rival in (INFINITY, TEI):
                if (found := self.best(workload.name, rival)) is not None:
                    what = f"throughput, {workload.title}, over {found[0]}"
                    self.add(what, "8 x", _spread(found[1], "ratio"), " x")
        for workload in (MANY, BATCHES):
            # On a processor without bfloat16 everything is float32.
            own = self.of(workload.name, CONCHE_FLOAT32) or self.of(workload.name, CONCHE)
            if (found := self.best(workload.name, INFINITY)) is not None and "texts_per_s" in own:
                times = own["texts_per_s"][0] / found[1]["texts_per_s"][0]
                self.add(f"the same in float32, {workload.title}, over {found[0]}", "2.5 x", times, " x")
        for workload, target, how in (
            (BATCHES, "3 x", "one request at a time"),
            (BULK, "1.2 x", "bulk `encode`"),
        ):
            if (found := self.best(workload.name, SENTENCE_TRANSFORMERS)) is not None:
                what = f"throughput, {workload.title}, over {found[0]}, {how}"
                self.add(what, target, _spread(found[1], "ratio"), " x")

    def overhead(self) -> None:
        """What comes on top of the bare engine, and the padding."""
        if (limit := self.best(BATCHES.name, LIMIT)) is not None:
            what = f"HTTP, tokenising and batching, of {limit[0]}"
            for ratio_, said in (("ratio", what), ("streams_ratio", "the same with two streams")):
                if (cost := _spread(limit[1], ratio_)) is not None:
                    part = Spread(*(100 * (1 - value) for value in (cost.median, cost.high, cost.low)))
                    self.add(said, "15 % at most", part, " %")
        for workload, what in ((SHORT, "one text of 16 tokens"), (ONE, "one text of mixed lengths")):
            one = self.of(workload.name, CONCHE)
            alone = [
                figures["p50_ms"][0]
                for name, figures in self._figures.get(workload.name, {}).items()
                if name.startswith(LIMIT) and "p50_ms" in figures
            ]
            if alone and "p50_ms" in one:
                above = one["p50_ms"][0] - min(alone)
                self.add(f"p50 of {what} above the bare engine", "1.5 ms at most", above, " ms")
        many = self.of(MANY.name, CONCHE)
        if "p99_ms" in many:
            self.add("p99 over p50, 32 clients", "3 x at most", many["p99_ms"][0] / many["p50_ms"][0], " x")
        padding = _spread(self.of(BATCHES.name, CONCHE), "padding")
        self.add("padding, 8 clients, 32 texts", "1.05 at most", padding)

    def overload(self) -> None:
        """What becomes of ten times as much as can be answered."""
        overload, streams = (self.of(OVERLOAD.name, name) for name in (CONCHE, CONCHE_STREAMS))
        self.add("throughput kept at 10 times too many", "90 % at least", _percent(overload, "kept"), " %")
        self.add("p99 of accepted requests there", "the queue's time", _spread(overload, "p99_ms"), " ms")
        self.add("p99 of refusals there", "50 ms at most", _spread(overload, "refused_p99_ms"), " ms")
        self.add("throughput kept with two streams", "90 % at least", _percent(streams, "kept"), " %")

    def footprint(self) -> None:
        """Start and memory."""
        started = _spread(self.of(START.name, CONCHE_DEFAULT), "start_s")
        self.add("start to ready, default models, 10,000 FAQ entries", "3 s at most", started, " s")
        # The target is in MB, as it was set.
        most_mb = {
            name: one[CONCHE_DEFAULT]["rss_mib"][2] * 2**20 / 1e6
            for name, one in self._figures.items()
            if "rss_mib" in one.get(CONCHE_DEFAULT, {})
        }
        loaded = most_mb.pop(START.name, None)
        most = max(most_mb.values(), default=None)
        self.add("resident memory then", "600 MB at most", loaded, " MB")
        self.add("the same after what was asked of them here, at most", "", most, " MB")


def targets(results: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What the project set out to reach, and what this run gave.

    Returns:
        (what, target, measured) each; those whose contestants were not measured are left out.
    """
    found = _Targets(results)
    found.throughput()
    found.overhead()
    found.overload()
    found.footprint()
    return found.rows


# Tables


def full_report(results: Mapping[str, Any] | None) -> str:
    """All tables, in Markdown."""
    if results is None:
        return NOT_YET
    machine = results["machine"]
    cut_off = ", cut off by its limit of time" if results["out_of_time"] else ""
    said = (
        f"{results['date']}, {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['features']}; Python {machine['python']}, commit {results['commit']}; "
        f"{results['minutes']} minutes{cut_off}. Medians of rounds, least and greatest in brackets; the "
        "contestants of a round follow each other."
    )
    against = _table(("", "target", "measured"), targets(results))
    parts = [said, f"### Against the targets\n\n{against}"]
    parts += [
        f"### {workload.title}\n\n{_workload_table(results['workloads'][workload.name])}"
        for workload in WORKLOADS
        if workload.name in results["workloads"]
    ]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    parts.append(f"### Who took part\n\n{_contestants_table(results)}\n\n{versions}")
    return "\n\n".join(parts)


def _workload_table(contestants: Mapping[str, Mapping[str, Any]]) -> str:
    columns = {
        "texts/s": "texts_per_s", "tokens/s": "tokens_per_s", "p50 ms": "p50_ms", "p99 ms": "p99_ms",
        "padding": "padding", "refused": "refused", "refusals' p99 ms": "refused_p99_ms",
        "of the peak": "kept",
        "start s": "start_s", "RSS MiB": "rss_mib",
        "Conche is": "ratio",
    }  # fmt: skip
    used = {
        title: name for title, name in columns.items() if any(name in one for one in contestants.values())
    }
    rows = []
    for name, one in contestants.items():
        cells = [
            _shown(one, figure) + (" x" if figure == "ratio" and figure in one else "")
            for figure in used.values()
        ]
        rows.append(
            [
                f"**{name}**" if name.startswith(CONCHE) else name,
                *cells,
                str(one["rounds"]),
                one.get("failed", ""),
            ]
        )
    titles = ["", *used, "rounds", "failed"]
    if not any(row[-1] for row in rows):
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    return _table(titles, rows)


def _contestants_table(results: Mapping[str, Any]) -> str:
    rows = []
    for one in results["contestants"]:
        state = results["absent"].get(one["name"])
        cosine = results["cosines"].get(one["name"])
        start = results["starts"].get(one["name"])
        rows.append(
            [
                one["name"],
                one["note"],
                f"did not run: {state}" if state else "took part",
                "" if start is None else readable(start),
                "" if cosine is None else f"{cosine:.5f}",
            ]
        )
    return _table(("", "what", "here", "first start s", "least cosine to the first one's vectors"), rows)


def short_table(results: Mapping[str, Any] | None, language: str = "en") -> str:
    """The few figures that the READMEs quote."""
    chinese = language == "zh"
    if results is None:
        return "尚无记录；运行 `make bench` 即可得到。" if chinese else NOT_YET
    workloads = (ONE, MANY, BATCHES, BULK)
    names = dict.fromkeys(name for one in workloads for name in results["workloads"].get(one.name, {}))
    rows = [
        [name, *(_shown_rate(results["workloads"].get(one.name, {}).get(name, {})) for one in workloads)]
        for name in names
    ]
    titles = [
        "每秒文本数" if chinese else "texts/s",
        *((_ZH if chinese else _EN)[one.name] for one in workloads),
    ]
    date, processor, cores = results["date"], results["machine"]["processor"], results["machine"]["cores"]
    said = (
        f"{date}，{processor}，{cores} 核，all-MiniLM-L6-v2，中位数："
        if chinese
        else f"{date}, {processor}, {cores} cores, all-MiniLM-L6-v2, medians:"
    )
    return f"{said}\n\n{_table(titles, rows)}"


_EN: Final = {one.name: one.title for one in WORKLOADS}
_ZH: Final = {
    ONE.name: "1 个客户端，1 条文本",
    MANY.name: "32 个客户端，1 条文本",
    BATCHES.name: "8 个客户端，32 条文本",
    BULK.name: "1 个客户端，2,048 条文本",
}


def _shown_rate(figures: Mapping[str, Any]) -> str:
    return readable(figures["texts_per_s"][0]) if "texts_per_s" in figures else ""


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "/") for cell in line) + " |" for line in lines)


def put_between(text: str, content: str, marker: str = "speed") -> str:
    """Replace what stands between ``<!-- MARKER:begin -->`` and ``<!-- MARKER:end -->``.

    Raises:
        ValueError: the markers are not there, once each and in this order.
    """
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"{begin} and {end} have to be there, once each")
    return re.sub(rf"{begin}.*{end}", lambda _: f"{begin}\n{content}\n{end}", text, flags=re.DOTALL)


# Pictures


def bars(title: str, values: Sequence[tuple[str, Spread]], unit: str) -> str:
    """Draw one bar a contestant, with a whisker from the least round to the greatest.

    Returns:
        An SVG document without scripts; every figure is written beside its bar.
    """
    left, width, step = 270, 760, 26
    height = 40 + step * len(values)
    most = max((value.high for _, value in values), default=0.0) or 1.0
    room = width - left - 150
    parts = [f'<text x="8" y="22" font-size="15" fill="{_INK}">{escape(title)}, {escape(unit)}</text>']
    for number, (name, value) in enumerate(values):
        top = 36 + step * number
        colour = next((tone for start, tone in _COLOURS.items() if name.startswith(start)), _OTHER_COLOUR)
        end, low, high = (left + room * part / most for part in (value.median, value.low, value.high))
        middle = top + 9
        parts.append(
            f'<text x="{left - 8}" y="{top + 13}" text-anchor="end" fill="{_INK}">{escape(name)}</text>'
            f'<rect x="{left}" y="{top}" width="{end - left:.1f}" height="18" fill="{colour}"/>'
            f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8" '
            f'stroke="{_INK}" fill="none"/>'
            f'<text x="{high + 8:.1f}" y="{top + 13}" fill="{_INK}">{escape(readable(value.median))}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}" '
        f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="12">'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def pictures(results: Mapping[str, Any]) -> dict[str, str]:
    """SVG documents by file name: throughput of every workload, and latency where one request is one text."""
    drawn = {}
    for workload in WORKLOADS:
        contestants = results["workloads"].get(workload.name, {})
        figures = [("texts_per_s", "texts/s")]
        if workload in (ONE, SHORT, MANY, SEARCH):
            figures.append(("p99_ms", "p99, ms"))
        if workload == START:
            figures = [("start_s", "s")]
        for name, unit in figures:
            values = [(who, Spread(*one[name])) for who, one in contestants.items() if name in one]
            if len(values) > 1:
                drawn[f"{workload.name}-{name.removesuffix('_ms')}.svg"] = bars(workload.title, values, unit)
    return drawn


def write_pictures(results: Mapping[str, Any], folder: Path) -> None:
    """Write all pictures, in place of older ones; those of other measurements stay."""
    for workload in WORKLOADS:
        for figure in ("texts_per_s", "p99", "start_s"):
            (folder / f"{workload.name}-{figure}.svg").unlink(missing_ok=True)
    for name, content in pictures(results).items():
        (folder / name).write_text(content, encoding="utf-8")
