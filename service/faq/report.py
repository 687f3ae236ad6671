"""An evaluation as one HTML page with its plots inside: nothing to fetch, nothing to run, safe to mail."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

import numpy as np

from service.faq.evaluation import CurvePoint, Evaluation, Failure

# Told apart with red-green blindness, and in grey.
_BLUE: Final = "#0b62a4"
_ORANGE: Final = "#d9730d"
_GREY: Final = "#9aa4ad"
_WIDTH: Final = 420
_HEIGHT: Final = 280
_LEFT: Final = 48
_BOTTOM: Final = 40
_MARGIN: Final = 12
_HISTOGRAM_BINS: Final = 20
_IDS_LISTED: Final = 20
_KINDS: Final = {
    "unknown": "the collection has no entry of that id",
    "nothing": "nothing was found",
    "wrong": "another entry came first",
    "silent": "the right entry came first, below the threshold",
    "answered": "nothing answers it, and an entry was shown",
}
_METRICS: Final = (
    ("accuracy_at_1", "accuracy@1"),
    ("hit_at_5", "hit@5"),
    ("mrr_at_10", "MRR@10"),
    ("ndcg_at_10", "nDCG@10"),
)
_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2rem auto;padding:0 1rem;color:#1c2733}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse;margin:.6rem 0}th,td{padding:.25rem .7rem;border-bottom:1px solid #dde3e8;
text-align:left;vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.plots{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0}figcaption{font-size:.9rem;max-width:420px}
svg text{font:11px system-ui,sans-serif;fill:#1c2733}
"""


def html_report(
    evaluation: Evaluation, *, title: str, unknown_ids: Sequence[str] = (), created: datetime | None = None
) -> str:
    """Return a whole HTML document.

    Args:
        evaluation: what to show.
        title: names the collection, the model and the file of queries.
        unknown_ids: labels of the queries that name no entry.
        created: the time to print; None = now.
    """
    when = (created or datetime.now(UTC)).isoformat(timespec="minutes")
    plots = (
        _figure(_mode_bars(evaluation), "Ranking of the answerable queries, by mode."),
        _figure(
            _reliability_plot(evaluation),
            f"Confidence against accuracy of the first hit; on the line they agree. Wider dots stand for "
            f"more queries. Expected calibration error {_number(evaluation.ece)}.",
        ),
        _figure(
            _curve_plot(evaluation),
            "Precision (blue) and recall (orange) of showing the first hit, over the threshold; the dashed "
            "line is the threshold used here.",
        ),
        _figure(
            _score_plot(evaluation),
            f"Confidence of the first hit for queries with an answer (blue) and without (orange). AUC "
            f"{_number(evaluation.auc)}.",
        ),
    )
    body = (
        f"<h1>{escape(title)}</h1>",
        f"<p>{evaluation.queries} queries, {evaluation.answerable} of them answerable. {escape(when)}.</p>",
        *([f"<p>{escape(_no_entries(unknown_ids))}</p>"] if unknown_ids else []),
        f"<p>{_verdict(evaluation)}</p>",
        "<h2>Ranking</h2>",
        _mode_table(evaluation),
        "<h2>Confidence</h2>",
        f"<p>Of mode {escape(evaluation.judged_mode)}.</p>",
        f'<div class="plots">{"".join(plots)}</div>',
        f"<h2>Queries that fail ({len(evaluation.failures)})</h2>",
        _failure_table(evaluation.failures, frozenset(unknown_ids)),
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _no_entries(unknown_ids: Sequence[str]) -> str:
    names = ", ".join(unknown_ids[:_IDS_LISTED]) + (", ..." if len(unknown_ids) > _IDS_LISTED else "")
    count = len(unknown_ids)
    return f"{count} labels name no entry of the collection; their queries count as failed: {names}"


def _fault(failure: Failure, unknown_ids: frozenset[str]) -> str:
    kind = failure.kind
    if kind == "wrong" and unknown_ids.issuperset(failure.expected):
        kind = "unknown"
    elif kind == "wrong" and not failure.found:
        kind = "nothing"
    return _KINDS[kind]


def _verdict(evaluation: Evaluation) -> str:
    wanted = f"{evaluation.wanted_precision:.0%}"
    proposed, used = evaluation.proposed, evaluation.at_threshold
    parts = [f"No threshold reaches a precision of {wanted} on these queries."]
    if proposed is not None:
        parts = [
            f"For a precision of {wanted}: <strong>min_score {proposed.threshold:.3f}</strong>.",
            _consequence(proposed),
        ]
    if proposed is None or evaluation.threshold != proposed.threshold:
        parts.append(f"Here, {evaluation.threshold:.3f} is used:")
        parts.append("no query gets an answer." if used is None else _consequence(used))
    return " ".join(parts)


def _consequence(point: CurvePoint) -> str:
    refused = "" if math.isnan(point.refused) else f"; {point.refused:.0%} of the unanswerable get none"
    return (
        f"{point.answered} queries get an answer, {point.right} a right one (precision "
        f"{point.precision:.3f}, {_number(point.recall)} of the answerable){refused}."
    )


def _mode_table(evaluation: Evaluation) -> str:
    head = "".join(f'<th class="n">{label}</th>' for _, label in _METRICS)
    rows = []
    for mode, metrics in evaluation.modes.items():
        cells = "".join(f'<td class="n">{_number(getattr(metrics, name))}</td>' for name, _ in _METRICS)
        rows.append(f"<tr><td>{escape(mode)}</td>{cells}</tr>")
    return f"<table><tr><th>mode</th>{head}</tr>{''.join(rows)}</table>"


def _failure_table(failures: Sequence[Failure], unknown_ids: frozenset[str]) -> str:
    if not failures:
        return "<p>None.</p>"
    rows = []
    for failure in failures:
        found = f"{failure.found}: {failure.found_question}" if failure.found else "nothing"
        cells = (
            failure.query,
            _fault(failure, unknown_ids),
            ", ".join(failure.expected) or "no answer",
            found,
        )
        rank = "" if failure.rank is None else str(failure.rank)
        rows.append(
            "<tr>"
            + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            + f'<td class="n">{failure.score:.3f}</td><td class="n">{rank}</td></tr>'
        )
    return (
        "<table><tr><th>query</th><th>what went wrong</th><th>right</th><th>first hit</th>"
        f'<th class="n">confidence</th><th class="n">rank of the right one</th></tr>{"".join(rows)}</table>'
    )


def _mode_bars(evaluation: Evaluation) -> str:
    colours = (_BLUE, _ORANGE, _GREY)
    parts = []
    modes = list(evaluation.modes.items())
    group = 1 / len(_METRICS)
    bar = group * 0.8 / len(modes)
    for place, (name, label) in enumerate(_METRICS):
        for number, (mode, metrics) in enumerate(modes):
            value = getattr(metrics, name)
            left = place * group + group * 0.1 + number * bar
            parts.append(
                _bar(left, left + bar * 0.9, value, colours[number % 3], f"{mode} {label} {_number(value)}")
            )
        parts.append(_label(_x((place + 0.5) * group), _HEIGHT - _BOTTOM + 15, label, "middle"))
    for number, (mode, _) in enumerate(modes):
        left = _LEFT + number * 90
        parts.append(
            f'<rect x="{left}" y="{_HEIGHT - 14}" width="10" height="10" fill="{colours[number % 3]}"/>'
            + _label(left + 14, _HEIGHT - 5, mode, "start")
        )
    return _svg("Ranking by mode", [*_y_axis(_share), *parts])


def _reliability_plot(evaluation: Evaluation) -> str:
    parts = [_line([(0.0, 0.0), (1.0, 1.0)], _GREY, dashed=True)]
    most = max((one.queries for one in evaluation.reliability), default=0)
    for one in evaluation.reliability:
        if one.queries:
            radius = 3 + 7 * math.sqrt(one.queries / most)
            told = f"{one.queries} queries, confidence {one.confidence:.2f}, accuracy {one.accuracy:.2f}"
            parts.append(
                f'<circle cx="{_x(one.confidence):.1f}" cy="{_y(one.accuracy):.1f}" r="{radius:.1f}" '
                f'fill="{_BLUE}" fill-opacity="0.75"><title>{told}</title></circle>'
            )
    return _svg("Reliability", [*_y_axis(_share), *_x_axis("confidence"), *parts])


def _curve_plot(evaluation: Evaluation) -> str:
    parts = [*_y_axis(_share), *_x_axis("threshold")]
    points = sorted(evaluation.curve, key=lambda point: point.threshold)
    parts.append(_line([(point.threshold, point.precision) for point in points], _BLUE))
    parts.append(_line([(point.threshold, point.recall) for point in points], _ORANGE))
    parts.append(_line([(evaluation.threshold, 0.0), (evaluation.threshold, 1.0)], _GREY, dashed=True))
    return _svg("Precision and recall over the threshold", parts)


def _score_plot(evaluation: Evaluation) -> str:
    counts = [
        np.histogram(scores, bins=_HISTOGRAM_BINS, range=(0.0, 1.0))[0]
        for scores in (evaluation.answerable_scores, evaluation.unanswerable_scores)
    ]
    top = max(1, *(int(count.max()) for count in counts))
    parts = [*_y_axis(lambda share: f"{share * top:.0f}"), *_x_axis("confidence")]
    half = 0.5 / _HISTOGRAM_BINS
    for shift, (colour, count) in enumerate(zip((_BLUE, _ORANGE), counts, strict=True)):
        for number, value in enumerate(count):
            left = number / _HISTOGRAM_BINS + shift * half
            parts.append(_bar(left, left + half * 0.9, value / top, colour, f"{value} queries"))
    return _svg("Scores", parts)


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _MARGIN)


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _MARGIN)


def _bar(left: float, right: float, height: float, colour: str, told: str) -> str:
    if math.isnan(height):
        return ""
    return (
        f'<rect x="{_x(left):.1f}" y="{_y(height):.1f}" width="{_x(right) - _x(left):.1f}" '
        f'height="{_y(0) - _y(height):.1f}" fill="{colour}"><title>{escape(told)}</title></rect>'
    )


def _line(points: Sequence[tuple[float, float]], colour: str, *, dashed: bool = False) -> str:
    drawn = " ".join(f"{_x(x):.1f},{_y(y):.1f}" for x, y in points if not math.isnan(y))
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>'


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _y_axis(shown: Callable[[float], str]) -> list[str]:
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(
            f'<line x1="{_x(0)}" x2="{_x(1)}" y1="{_y(share):.1f}" y2="{_y(share):.1f}" stroke="#e3e8ec"/>'
        )
        parts.append(_label(_LEFT - 6, _y(share) + 4, shown(share), "end"))
    return parts


def _x_axis(name: str) -> list[str]:
    ticks = [
        _label(_x(share), _HEIGHT - _BOTTOM + 15, _share(share), "middle")
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    return [*ticks, _label(_x(0.5), _HEIGHT - 6, name, "middle")]


def _share(value: float) -> str:
    return f"{value:g}"


def _svg(name: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(name)}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}">{"".join(parts)}</svg>'
    )


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"
