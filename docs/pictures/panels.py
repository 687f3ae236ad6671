"""A dashboard of deploy/grafana drawn by us: its panels in their places, with what Prometheus answers.

It is not Grafana, which draws them differently; titles, places, queries and legends are the dashboard's own.
"""

import html
import json
import re
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

WIDTH: Final = 1280
_COLUMN: Final = WIDTH / 24
_ROW: Final = 26
_COLOURS: Final = ("#1f77b4", "#d95f02", "#2ca02c", "#9467bd", "#c51b7d", "#8c6d31", "#17a2b8", "#7f7f7f")
_STYLE: Final = """body{margin:0;font:12px/1.25 sans-serif;background:#f2f3f5;color:#222}
main{position:relative;margin:8px}
section{position:absolute;box-sizing:border-box;background:#fff;border:1px solid #d8dade;border-radius:3px;
padding:5px 8px;overflow:hidden}
h1{font-size:15px;margin:8px 12px 0}h2{position:absolute;margin:0;font-size:13px;color:#555}
h3{font-size:12px;margin:0 0 3px}.stat{font-size:19px;margin-right:14px}.stat small{font-size:11px;color:#555}
ul{margin:2px 0 0;padding:0;list-style:none;font-size:10px}li{display:inline;margin-right:9px}
table{font-size:10px;border-spacing:8px 1px}th{text-align:left;color:#555}text{font-size:10px;fill:#555}"""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """What answers queries, and for which time.

    Attributes:
        url: of the server.
        start, end: of the time shown, in Unix seconds.
        step: between points, in seconds.
        window: of rates, as PromQL writes it.
    """

    url: str
    start: float
    end: float
    step: int
    window: str

    def series(self, expr: str) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Labels and points (time, value) of what ``expr`` gives over the time."""
        values = {"start": self.start, "end": self.end, "step": self.step}
        return [
            (found["metric"], [(float(at), float(value)) for at, value in found["values"]])
            for found in self._ask("query_range", expr, values)
        ]

    def now(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of what ``expr`` gives at the end of the time."""
        found = self._ask("query", expr, {"time": self.end})
        return [(one["metric"], float(one["value"][1])) for one in found]

    def _ask(self, what: str, expr: str, values: Mapping[str, float]) -> list[dict[str, Any]]:
        expr = expr.replace("$__rate_interval", self.window)
        expr = expr.replace("$__range", f"{round(self.end - self.start)}s")
        expr = re.sub(r"\$(route|model)\b", ".+", expr)
        query = urllib.parse.urlencode({"query": expr, **values})
        with urllib.request.urlopen(f"{self.url}/api/v1/{what}?{query}", timeout=30) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result


def page(dashboard: Mapping[str, Any], prometheus: Prometheus) -> tuple[str, int]:
    """A whole HTML page of ``dashboard`` as Grafana reads it, and its height in pixels."""
    parts = []
    bottom = 0.0
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        left, top = place["x"] * _COLUMN, place["y"] * _ROW
        width, height = place["w"] * _COLUMN - 6, place["h"] * _ROW - 6
        bottom = max(bottom, top + height)
        where = f"left:{left:.0f}px;top:{top:.0f}px;width:{width:.0f}px;height:{height:.0f}px"
        title = html.escape(panel["title"])
        if panel["type"] == "row":
            parts.append(f'<h2 style="{where}">{title}</h2>')
        else:
            content = _CONTENT[panel["type"]](panel, prometheus, width - 18, height - 30)
            parts.append(f'<section style="{where}"><h3>{title}</h3>{content}</section>')
    text = (
        f'<!doctype html><meta charset="utf-8"><style>{_STYLE}</style>'
        f"<h1>{html.escape(dashboard['title'])}</h1><main>{''.join(parts)}</main>"
    )
    return text, round(bottom) + 50


def _legend(template: str, labels: Mapping[str, str]) -> str:
    filled = re.sub(r"\{\{ *(\w+) *\}\}", lambda found: labels.get(found[1], ""), template)
    return filled or ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def _number(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "bytes":
        return f"{value / 2**20:.0f} MiB"
    if unit == "s" and value and abs(value) < 1:
        return f"{value * 1000:.3g} ms"
    suffix = {"s": " s", "reqps": "/s", "cps": "/s"}.get(unit, "")
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}") + suffix


def _timeseries(panel: Mapping[str, Any], prometheus: Prometheus, width: float, height: float) -> str:
    lines = [
        (_legend(target["legendFormat"], labels), points)
        for target in panel["targets"]
        for labels, points in prometheus.series(target["expr"])
    ]
    lines = [
        (name, [(at, value) for at, value in points if abs(value) < float("inf")]) for name, points in lines
    ]
    lines = [(name, points) for name, points in lines if points]
    if not lines:
        return "<p>no data yet</p>"
    unit = panel["fieldConfig"]["defaults"]["unit"]
    top = max(value for _, points in lines for _, value in points) or 1.0
    rows = 1 + sum(len(name) + 4 for name, _ in lines) // int(width / 5.5)
    height -= 14.0 * rows
    left = 52.0

    def place(at: float, value: float) -> str:
        x = left + (at - prometheus.start) / (prometheus.end - prometheus.start) * (width - left)
        return f"{x:.1f},{height - 5 - max(value, 0) / top * (height - 14):.1f}"

    drawn = [
        f'<line x1="{left}" x2="{width}" y1="{y}" y2="{y}" stroke="#e3e5e8"/>'
        f'<text x="{left - 4}" y="{y + 3}" text-anchor="end">{_number(top * share, unit)}</text>'
        for share in (0.0, 0.5, 1.0)
        for y in [round(height - 5 - share * (height - 14), 1)]
    ]
    drawn += [
        f'<polyline fill="none" stroke="{_COLOURS[number % len(_COLOURS)]}" stroke-width="1.4" '
        f'points="{" ".join(place(at, value) for at, value in points)}"/>'
        for number, (_, points) in enumerate(lines)
    ]
    names = "".join(
        f'<li><span style="color:{_COLOURS[number % len(_COLOURS)]}">&#9632;</span> {html.escape(name)}</li>'
        for number, (name, _) in enumerate(lines)
    )
    return f'<svg width="{width:.0f}" height="{height:.0f}">{"".join(drawn)}</svg><ul>{names}</ul>'


def _heatmap(panel: Mapping[str, Any], prometheus: Prometheus, width: float, height: float) -> str:
    found = prometheus.series(panel["targets"][0]["expr"])
    buckets = sorted(found, key=lambda one: float(one[0]["le"].replace("+Inf", "inf")))
    if not buckets:
        return "<p>no data yet</p>"
    below: dict[float, float] = {}
    cells = []
    for number, (labels, points) in enumerate(buckets):
        cells += [(number, at, max(value - below.get(at, 0.0), 0.0)) for at, value in points]
        below = dict(points)
        buckets[number] = (labels, points)
    most = max(value for *_, value in cells) or 1.0
    tall, left = height / len(buckets), 36.0
    wide = (width - left) / ((prometheus.end - prometheus.start) / prometheus.step + 1)
    drawn = [
        f'<rect x="{left + (at - prometheus.start) / prometheus.step * wide:.1f}" width="{wide:.2f}" '
        f'y="{height - (number + 1) * tall:.1f}" height="{tall - 1:.1f}" fill="#d95f02" '
        f'fill-opacity="{value / most:.2f}"/>'
        for number, at, value in cells
        if value > 0
    ]
    drawn += [
        f'<text x="0" y="{height - number * tall - 2:.1f}">{html.escape(labels["le"])}</text>'
        for number, (labels, _) in enumerate(buckets)
        if number % 3 == 0
    ]
    return f'<svg width="{width:.0f}" height="{height:.0f}">{"".join(drawn)}</svg>'


def _stat(panel: Mapping[str, Any], prometheus: Prometheus, width: float, height: float) -> str:
    del width, height
    defaults = panel["fieldConfig"]["defaults"]
    words = {
        value: one["text"]
        for group in defaults.get("mappings", ())
        for value, one in group["options"].items()
    }
    found = [
        (_legend(target["legendFormat"], labels), value)
        for target in panel["targets"]
        for labels, value in prometheus.now(target["expr"])
    ]
    return "".join(
        f'<span class="stat">{html.escape(words.get(f"{value:g}", _number(value, defaults["unit"])))} '
        f"<small>{html.escape(name)}</small></span>"
        for name, value in found
    )


def _table(panel: Mapping[str, Any], prometheus: Prometheus, width: float, height: float) -> str:
    del width, height
    rows = [labels for labels, _ in prometheus.now(panel["targets"][0]["expr"])]
    names = [name for name in (rows[0] if rows else {}) if name not in {"__name__", "instance", "job"}]
    body = "".join(f"<tr>{_cells('td', [row.get(name, '')[:28] for name in names])}</tr>" for row in rows)
    return f"<table><tr>{_cells('th', names)}</tr>{body}</table>"


def _cells(kind: str, texts: Sequence[str]) -> str:
    return "".join(f"<{kind}>{html.escape(text)}</{kind}>" for text in texts)


_CONTENT: Final = {"timeseries": _timeseries, "heatmap": _heatmap, "stat": _stat, "table": _table}
