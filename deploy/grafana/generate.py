# ruff: noqa: INP001 - a script
"""Writes the dashboards beside it (`make dashboards`), so that all panels are alike and a diff can be read.

Each panel's title is the question that it answers; its description says what to do about the answer.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "dashboards"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WINDOW = "[$__rate_interval]"
PROBES = "/livez|/readyz|/health|/metrics"
QUANTILES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
ROUTE = 'route=~"$route"'
# As in deploy/prometheus/slo.yml.
MEASURED = 'route=~"/embed|/search|/ner|/v1/embeddings"'
WITHIN = f'{MEASURED}, le="1.0"'
MODEL = 'model=~"$model"'
PROCESS = 'job="conche"'
# Of each process; with one worker there is no such label, and nothing is shown for it.
EACH = "{{instance}} {{worker}}"

GREEN, YELLOW, RED = "green", "yellow", "red"
Steps = Sequence[tuple[float | None, str]]
Query = tuple[str, str]


@dataclass(frozen=True)
class Panel:
    """One panel; rows of a dashboard are filled from left to right.

    Attributes:
        title: the question.
        description: how to read the answer, and what to do about it.
        queries: PromQL with its legend.
        unit: Grafana's name of the unit.
        width: of 24 columns.
        thresholds: (from, colour), the first from None.
        kind: "timeseries", "heatmap", "stat" or "table".
        dashed: legends drawn as dashed lines: limits, not measurements.
        mappings: text shown for a value.
        decimals: digits after the point; None leaves it to Grafana.
    """

    title: str
    description: str
    queries: Sequence[Query]
    unit: str = "short"
    width: int = 8
    thresholds: Steps = ((None, GREEN),)
    kind: str = "timeseries"
    dashed: Sequence[str] = ()
    mappings: dict[str, tuple[str, str]] = field(default_factory=dict)
    decimals: int | None = None

    def render(self, number: int, x: int, y: int) -> dict[str, Any]:
        """Grafana's JSON for the panel, with its id and place."""
        instant = self.kind in {"stat", "table"}
        defaults: dict[str, Any] = {
            "unit": self.unit,
            "noValue": "no data yet",
            "thresholds": {
                "mode": "absolute",
                "steps": [{"value": value, "color": color} for value, color in self.thresholds],
            },
        }
        if self.decimals is not None:
            defaults["decimals"] = self.decimals
        if self.mappings:
            options = {
                value: {"text": text, "color": color, "index": index}
                for index, (value, (text, color)) in enumerate(self.mappings.items())
            }
            defaults["mappings"] = [{"type": "value", "options": options}]
        if self.kind == "timeseries":
            defaults["min"] = 0
            shown = "dashed" if len(self.thresholds) > 1 else "off"
            defaults["custom"] = {
                "drawStyle": "line",
                "fillOpacity": 8,
                "lineWidth": 1,
                "showPoints": "never",
                "thresholdsStyle": {"mode": shown},
            }
        panel: dict[str, Any] = {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": 4 if instant else 8},
            "fieldConfig": {"defaults": defaults, "overrides": [_dashed(legend) for legend in self.dashed]},
            "options": OPTIONS[self.kind],
            "targets": [
                {
                    "refId": chr(ord("A") + index),
                    "datasource": DATASOURCE,
                    "expr": expr,
                    "legendFormat": legend,
                    "range": not instant,
                    "instant": instant,
                    "format": FORMATS.get(self.kind, "time_series"),
                    # Traces that fell into a bucket, as points.
                    "exemplar": "_bucket" in expr and not instant,
                }
                for index, (expr, legend) in enumerate(self.queries)
            ],
        }
        if self.kind == "table":
            hidden = ("Time", "Value", "__name__", "instance", "job")
            panel["transformations"] = [
                {"id": "organize", "options": {"excludeByName": dict.fromkeys(hidden, True)}}
            ]
        return panel


FORMATS = {"table": "table", "heatmap": "heatmap"}
OPTIONS: dict[str, dict[str, Any]] = {
    "heatmap": {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
        "cellGap": 1,
        "legend": {"show": True},
        "tooltip": {"mode": "single", "yHistogram": True},
        "yAxis": {"axisPlacement": "left"},
    },
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "colorMode": "background",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "value_and_name",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    },
    "table": {"showHeader": True, "cellHeight": "sm"},
}


def _dashed(legend: str) -> dict[str, Any]:
    return {
        "matcher": {"id": "byRegexp", "options": legend},
        "properties": [
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
            {"id": "custom.fillOpacity", "value": 0},
        ],
    }


def rate(metric: str, by: str, selector: str = MODEL) -> str:
    """Increase per second, summed ``by`` labels."""
    chosen = f"{{{selector}}}" if selector else ""
    return f"sum by ({by}) (rate({metric}{chosen}{WINDOW}))"


def per_second(metric: str) -> str:
    """Increase per second, over everything."""
    return f"sum(rate({metric}{WINDOW}))"


BUSY = (
    f"{rate('conche_inference_stream_seconds_total', 'model')} "
    f"/ sum by (model) (avg_over_time(conche_inference_streams{{{MODEL}}}{WINDOW}))"
)


def quantile(share: float, histogram: str, by: str, selector: str = MODEL) -> str:
    """The value that ``share`` of what a histogram saw stays below, for each combination of ``by``."""
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', by, selector)})"


def quantiles(histogram: str, by: str, selector: str) -> list[Query]:
    """p50, p95 and p99 of a histogram, one line for each value of the label ``by``."""
    labels = f"le, {by}" if by else "le"
    legend = f"{{{{{by}}}}} " if by else ""
    return [(quantile(share, histogram, labels, selector), legend + name) for share, name in QUANTILES]


def mean(histogram: str, by: str) -> str:
    """Mean of what a histogram saw."""
    return f"{rate(f'{histogram}_sum', by)} / {rate(f'{histogram}_count', by)}"


def share_of_requests(selector: str) -> str:
    """Share of the chosen routes' requests that ``selector`` picks; 0 to 1."""
    picked = f"sum(rate(conche_requests_total{{{ROUTE}, {selector}}}{WINDOW}))"
    # A status that never occurred has no series, and no series is no failure.
    return f"({picked} or vector(0)) / sum(rate(conche_requests_total{{{ROUTE}}}{WINDOW}))"


QUERIES = per_second("conche_faq_queries_total")
BARS = 'le=~"0.3|0.5|0.7|0.9"'
# -1 where there is no certificate: a panel without data could as well be a metric that was renamed.
UNTIL_EXPIRY = "conche_tls_certificate_expiry_timestamp_seconds - time() or conche_connections * 0 - 1"
YES_NO = {"1": ("yes", GREEN), "0": ("no", RED)}
UP_TO_A_SECOND: Steps = ((None, GREEN), (0.5, YELLOW), (1, RED))

Rows = Sequence[tuple[str, Sequence[Panel]]]

# Whoever is on call looks here first.
OVERVIEW: Rows = (
    (
        "Now",
        (
            Panel(
                "Is the service up?",
                "Whether Prometheus reaches /metrics. No: look at `docker compose ps` and the service's log.",
                [(f"up{{{PROCESS}}}", "{{instance}}")],
                width=4,
                kind="stat",
                thresholds=((None, RED), (1, GREEN)),
                mappings=YES_NO,
            ),
            Panel(
                "Is each service ready?",
                "Whether /readyz says to send requests. No: it names the reasons.",
                [("conche_ready", "{{instance}}")],
                width=4,
                kind="stat",
                thresholds=((None, RED), (1, GREEN)),
                mappings=YES_NO,
            ),
            Panel(
                "Does each model take work?",
                "No: its bundle was refused, or its worker ended or hangs. /readyz is red and requests for "
                "it fail at once; the log says why.",
                [(f"conche_model_healthy{{{MODEL}}}", "{{model}}")],
                width=8,
                kind="stat",
                thresholds=((None, RED), (1, GREEN)),
                mappings=YES_NO,
            ),
            Panel(
                "How many alerts fire?",
                "Of deploy/prometheus/alerts.yml; docs/runbook.md has a section for each. Prometheus "
                "lists them under /alerts, Alertmanager who was told.",
                [('count(ALERTS{alertname=~"Conche.+", alertstate="firing"}) or vector(0)', "firing")],
                width=4,
                kind="stat",
                thresholds=((None, GREEN), (1, RED)),
                decimals=0,
            ),
            Panel(
                "How many runs failed?",
                "Runs of a model that raised or gave values that are not finite, in the time shown. "
                "Any is a fault.",
                [
                    (
                        f"sum by (model) (increase(conche_failed_batches_total{{{MODEL}}}[$__range]))",
                        "{{model}}",
                    )
                ],
                width=4,
                kind="stat",
                thresholds=((None, GREEN), (1, RED)),
                decimals=0,
            ),
        ),
    ),
    (
        "Objectives",
        (
            Panel(
                "How fast do failures use up what may fail?",
                "Burn rate: 1 uses up the budget of a month in a month, 14.4 over an hour wakes "
                "somebody. The objective is in deploy/prometheus/slo.yml. Flat at 0: no request "
                "failed.",
                [
                    ("job:conche_errors:burnrate5m", "over 5m"),
                    ("job:conche_errors:burnrate1h", "over 1h"),
                    ("job:conche_errors:burnrate6h", "over 6h"),
                ],
                thresholds=((None, GREEN), (1, YELLOW), (6, RED)),
                width=12,
                decimals=1,
            ),
            Panel(
                "How fast do slow answers use up what may be slow?",
                (
                    "The same for answers that take longer than a second. Above 1 for hours: the "
                    'dashboard "Conche: latency" says which stage it is.'
                ),
                [
                    ("job:conche_latency:burnrate5m", "over 5m"),
                    ("job:conche_latency:burnrate1h", "over 1h"),
                    ("job:conche_latency:burnrate6h", "over 6h"),
                ],
                thresholds=((None, GREEN), (1, YELLOW), (6, RED)),
                width=12,
                decimals=1,
            ),
        ),
    ),
    (
        "Traffic",
        (
            Panel(
                "How many requests arrive, by route and status?",
                "Answered requests per second. Combinations that did not occur are left out.",
                [(f"{rate('conche_requests_total', 'route, status', ROUTE)} > 0", "{{route}} {{status}}")],
                unit="reqps",
            ),
            Panel(
                "What share of requests fails?",
                "5xx is the service's fault and should be 0. 429 means more work arrives than can be done: "
                "look at the queues. Other 4xx are the callers' faults.",
                [
                    (share_of_requests('status=~"5.."'), "5xx: service"),
                    (share_of_requests('status="429"'), "429: overloaded"),
                    (share_of_requests('status=~"4..", status!="429"'), "other 4xx: caller"),
                ],
                unit="percentunit",
                thresholds=((None, GREEN), (0.01, YELLOW), (0.05, RED)),
            ),
            Panel(
                "What is refused, and for which reason?",
                "Requests per second refused by a limit or for want of capacity. The reason is the error's "
                "code, which names the setting to change.",
                [(rate("conche_refusals_total", "reason", ""), "{{reason}}")],
                unit="reqps",
            ),
        ),
    ),
    (
        "Latency and load",
        (
            Panel(
                "How long do callers wait?",
                "From the first byte of a request to the last of its answer, over the chosen routes. The "
                "panels after this one say which stage it is.",
                quantiles("conche_request_duration_seconds", "", ROUTE),
                unit="s",
                thresholds=UP_TO_A_SECOND,
            ),
            Panel(
                "How busy is the engine?",
                "Of the seconds that its streams have, those that runs took; models share them, so their sum "
                "stays below 100 %. Near that for long: the process is at its capacity.",
                [(BUSY, "{{model}}")],
                unit="percentunit",
                thresholds=((None, GREEN), (0.7, YELLOW), (0.9, RED)),
            ),
            Panel(
                "How full is each queue?",
                "Share of the places for texts and tokens that are taken. At 100 % requests are answered "
                "429.",
                [
                    (f"conche_queue_depth_items{{{MODEL}}} / conche_queue_limit_items", "{{model}} texts"),
                    (f"conche_queue_depth_tokens{{{MODEL}}} / conche_queue_limit_tokens", "{{model}} tokens"),
                ],
                unit="percentunit",
                thresholds=((None, GREEN), (0.5, YELLOW), (0.9, RED)),
            ),
        ),
    ),
    (
        "Connections and keys",
        (
            Panel(
                "How many connections are open, of those that may be?",
                "TLS handshakes counted. Near the limit: raise `CONCHE_LIMITS__MAX_CONNECTIONS` and the "
                "limit of open files, or find out who opens them; `_MAX_CONNECTIONS_PER_ADDRESS` bounds one "
                "address.",
                [
                    ("conche_connections", "{{instance}} open"),
                    ("conche_connections_limit", "{{instance}} limit"),
                ],
                dashed=[".* limit"],
            ),
            Panel(
                "Which connections are refused or cut, and why?",
                "Per second. `too_many`: the limit is reached. `slow_...`: clients or lines too slow for the "
                "times allowed, or an attack. `failed_handshake`: no TLS, or none that both sides speak.",
                [(rate("conche_connections_cut_total", "reason", ""), "{{reason}}")],
                unit="cps",
            ),
            Panel(
                "How long is the TLS certificate valid?",
                "Of the one in force; a new file is taken within ten seconds. Red: renewing it has failed.",
                [
                    (
                        UNTIL_EXPIRY,
                        "{{instance}}",
                    )
                ],
                unit="s",
                width=4,
                kind="stat",
                thresholds=((None, RED), (2 * 86400, YELLOW), (14 * 86400, GREEN)),
                mappings={"-1": ("no TLS", GREEN)},
            ),
            Panel(
                "How often was a change of the key file unusable?",
                "In the time shown; the keys before it stay in force, removed ones too. The log says what is "
                "wrong with the file.",
                [("increase(conche_api_keys_reload_failures_total[$__range])", "{{instance}}")],
                width=4,
                kind="stat",
                thresholds=((None, GREEN), (1, RED)),
                decimals=0,
            ),
        ),
    ),
    (
        "What is running",
        (
            Panel(
                "Which models are loaded?",
                "Name, task, source, licence and precision, as the bundles' manifests have them.",
                [("conche_model_info", "")],
                width=16,
                kind="table",
            ),
            Panel(
                "Which version is running?",
                "Version of the service and of Python.",
                [("conche_build_info", "")],
                kind="table",
            ),
        ),
    ),
)

# Where the time of a request goes.
LATENCY: Rows = (
    (
        "What callers see",
        (
            Panel(
                "How long do callers wait?",
                "From the first byte of a request to the last of its answer, over the chosen routes. The "
                "panels after this one say which stage it is.",
                quantiles("conche_request_duration_seconds", "", ROUTE),
                unit="s",
                thresholds=UP_TO_A_SECOND,
            ),
            Panel(
                "Which route is slow?",
                "The slowest 5 % of each route's requests take longer than this.",
                [
                    (
                        quantile(0.95, "conche_request_duration_seconds", "le, route", ROUTE),
                        "{{route}} p95",
                    )
                ],
                unit="s",
                thresholds=UP_TO_A_SECOND,
            ),
            Panel(
                "What share of answers takes longer than a second?",
                "Of the routes that the objective is for. Above 1 % for long: the budget of slo.yml "
                "is used up before the month is over.",
                [
                    (
                        (
                            f"1 - sum(rate(conche_request_duration_seconds_bucket{{{WITHIN}}}{WINDOW})) "
                            f"/ sum(rate(conche_request_duration_seconds_count{{{MEASURED}}}{WINDOW}))"
                        ),
                        "slower than 1 s",
                    )
                ],
                unit="percentunit",
                thresholds=((None, GREEN), (0.01, YELLOW), (0.144, RED)),
            ),
        ),
    ),
    (
        "Stages of what a model does",
        (
            Panel(
                "How long does tokenising take?",
                "Per request, its wait for a thread included. High: very long texts, or too few CPUs.",
                quantiles("conche_tokenize_duration_seconds", "model", MODEL),
                unit="s",
            ),
            Panel(
                "How long do texts wait in the queue?",
                "From admission to the start of the run. High while the engine is busy all the time: more "
                "work arrives than one process does.",
                quantiles("conche_queue_duration_seconds", "model", MODEL),
                unit="s",
                thresholds=UP_TO_A_SECOND,
            ),
            Panel(
                "How long does one run of the model take?",
                "One batch. Smaller `CONCHE_BATCHING__MAX_BATCH_TOKENS` makes runs shorter and throughput "
                "lower.",
                quantiles("conche_inference_duration_seconds", "model", MODEL),
                unit="s",
                thresholds=UP_TO_A_SECOND,
            ),
            Panel(
                "Which stage does the time go to?",
                "Mean of each stage. Queue far above run: more arrives than the process does, and a "
                "second replica helps. Run above all: texts are long or batches large.",
                [
                    (mean("conche_tokenize_duration_seconds", "model"), "{{model}} tokenising"),
                    (mean("conche_queue_duration_seconds", "model"), "{{model}} queue"),
                    (mean("conche_inference_duration_seconds", "model"), "{{model}} run"),
                ],
                unit="s",
                width=12,
                thresholds=UP_TO_A_SECOND,
            ),
            Panel(
                "How many tokens does a run have?",
                "Mean and p95, of what layers compute; a run takes as long as its tokens. The limit is "
                "`CONCHE_BATCHING__MAX_BATCH_TOKENS`.",
                [
                    (mean("conche_batch_tokens", "model"), "{{model}} mean"),
                    (quantile(0.95, "conche_batch_tokens", "le, model"), "{{model}} p95"),
                    (f"conche_batch_limit_tokens{{{MODEL}}}", "{{model}} limit"),
                ],
                width=12,
                dashed=[".* limit"],
            ),
        ),
    ),
    (
        "Stages of a search",
        (
            Panel(
                "How long does each step of a search take?",
                "p95 of embedding the queries, of looking them up, and of bringing an index up to date after "
                "a write. Embedding slow: look at the queue. Lookup slow: the collection is large.",
                [
                    (quantile(0.95, f"conche_faq_{step}_duration_seconds", "le", ""), name)
                    for step, name in (("embed", "embedding"), ("lookup", "lookup"), ("index", "index"))
                ],
                unit="s",
                thresholds=UP_TO_A_SECOND,
            ),
            Panel(
                "How long does looking up take?",
                "Without embedding. It grows with the entries of a collection: CONTRIBUTING.md says "
                "how much.",
                quantiles("conche_faq_lookup_duration_seconds", "", ""),
                unit="s",
                thresholds=UP_TO_A_SECOND,
            ),
            Panel(
                "How long does embedding a query take?",
                "Its wait in the queue included: other requests are in front of it.",
                quantiles("conche_faq_embed_duration_seconds", "", ""),
                unit="s",
                thresholds=UP_TO_A_SECOND,
            ),
        ),
    ),
)

# Whether people get answers.
FAQ: Rows = (
    (
        "Answers",
        (
            Panel(
                "What share of queries gets no answer?",
                "No entry reached `min_score`, or the collection's. Rising: people ask what nobody wrote an "
                "entry about, or the threshold is too high; `conche faq eval` proposes one.",
                [(f"{per_second('conche_faq_unanswered_queries_total')} / {QUERIES}", "without answer")],
                unit="percentunit",
            ),
            Panel(
                "How sure is the search of its best hit?",
                "Score of the best entry for each query, shown or not: the probability that it answers. A "
                "median that falls says that queries and entries drift apart.",
                [
                    (quantile(share, "conche_faq_best_score", "le", ""), name)
                    for share, name in ((0.1, "p10"), (0.5, "median"), (0.9, "p90"))
                ],
                decimals=2,
            ),
            Panel(
                "How are the scores of best hits spread?",
                "Queries by the score of their best entry. Two heaps, one near 0 and one near 1, are "
                "good: questions are in the FAQ or they are not. Much in between: entries lack "
                "wordings; add alternates.",
                [("sum by (le) (increase(conche_faq_best_score_bucket[$__rate_interval]))", "{{le}}")],
                kind="heatmap",
            ),
            Panel(
                "How many queries would each threshold answer?",
                "Share of queries whose best entry reaches the score. Compare with `min_score`: a "
                "step between two lines is what moving it would change.",
                [
                    (
                        (
                            f"1 - sum by (le) (rate(conche_faq_best_score_bucket{{{BARS}}}{WINDOW})) "
                            f"/ on () group_left () sum(rate(conche_faq_best_score_count{WINDOW}))"
                        ),
                        "at {{le}}",
                    )
                ],
                unit="percentunit",
                width=12,
            ),
            Panel(
                "What share of queries finds next to nothing?",
                "Best score of 0.05 at most: nobody wrote an entry about these. They are not in the "
                "log; callers who keep them can tell what to write.",
                [
                    (
                        (
                            f'sum(rate(conche_faq_best_score_bucket{{le="0.05"}}{WINDOW})) '
                            f"/ sum(rate(conche_faq_best_score_count{WINDOW}))"
                        ),
                        "at most 0.05",
                    )
                ],
                unit="percentunit",
                width=12,
                thresholds=((None, GREEN), (0.3, YELLOW), (0.6, RED)),
            ),
        ),
    ),
    (
        "Work",
        (
            Panel(
                "How many queries are searched?",
                "Per second, over all collections; a request may hold many.",
                [(QUERIES, "queries")],
                unit="cps",
            ),
            Panel(
                "How long does each step of a search take?",
                "p95 of embedding the queries, of looking them up, and of bringing an index up to date after "
                "a write. Embedding slow: look at the queue. Lookup slow: the collection is large.",
                [
                    (quantile(0.95, f"conche_faq_{step}_duration_seconds", "le", ""), name)
                    for step, name in (("embed", "embedding"), ("lookup", "lookup"), ("index", "index"))
                ],
                unit="s",
                thresholds=UP_TO_A_SECOND,
            ),
            Panel(
                "How much is written?",
                "Entries written and deleted per second, and updates of indexes in memory: each write of a "
                "collection that is searched costs one.",
                [
                    (per_second("conche_faq_written_entries_total"), "written"),
                    (per_second("conche_faq_deleted_entries_total"), "deleted"),
                    (per_second("conche_faq_index_duration_seconds_count"), "index updates"),
                ],
                unit="cps",
            ),
        ),
    ),
    (
        "Collections",
        (
            Panel(
                "How many entries and collections are there?",
                "Disabled entries included. A gap: the store could not be read.",
                [("conche_faq_entries", "entries"), ("conche_faq_collections", "collections")],
            ),
            Panel(
                "Is the store readable?",
                "No: the disk or the Milvus server behind it is gone; searches in memory may go on, "
                "writes fail.",
                [("conche_faq_store_readable", "{{instance}}")],
                width=4,
                kind="stat",
                thresholds=((None, RED), (1, GREEN)),
                mappings=YES_NO,
            ),
            Panel(
                "How many collections are of another model?",
                "They cannot be searched until `conche faq reindex` has embedded them anew.",
                [("conche_faq_mismatched_collections", "{{instance}}")],
                width=4,
                kind="stat",
                thresholds=((None, GREEN), (1, RED)),
                decimals=0,
            ),
            Panel(
                "Which writes fail, and why?",
                "Failures of the store in the time shown, by the code of the error; faults of "
                "callers are not among them.",
                [("sum by (reason) (increase(conche_faq_write_failures_total[$__range]))", "{{reason}}")],
                width=8,
                kind="stat",
                thresholds=((None, GREEN), (1, RED)),
                decimals=0,
            ),
            Panel(
                "What share of queries in Milvus is unproven?",
                "Queries that ended at the bound of what is looked at, so that a better entry may "
                "have been missed. Without Milvus it is 0.",
                [(f"{per_second('conche_faq_unproven_queries_total')} / {QUERIES}", "unproven")],
                unit="percentunit",
                thresholds=((None, GREEN), (0.01, YELLOW), (0.1, RED)),
            ),
            Panel(
                "How many FAQ entries are searched?",
                "Entries that /search looks in. Zero although a file is set: the file did not load.",
                [("conche_faq_entries", "entries")],
                width=4,
                kind="stat",
                decimals=0,
            ),
        ),
    ),
)

# What is found in texts.
NER: Rows = (
    (
        "Entities",
        (
            Panel(
                "How many entities are found, by label?",
                "Per second, in answers; those that a caller did not ask for are not counted. A "
                "label that falls to 0 while texts arrive: the texts changed, or the model did.",
                [(rate("conche_entities_total", "model, label"), "{{model}} {{label}}")],
                unit="cps",
                width=12,
            ),
            Panel(
                "What share of entities has each label?",
                "Over the last minutes. A share that shifts without a change of model says that the "
                "texts are about something else.",
                [
                    (
                        (
                            f"{rate('conche_entities_total', 'model, label')} "
                            f"/ on (model) group_left () {rate('conche_entities_total', 'model')}"
                        ),
                        "{{model}} {{label}}",
                    )
                ],
                unit="percentunit",
                width=12,
            ),
            Panel(
                "How many entities of each label were found?",
                "In the time shown. 0 for a label that the texts should have: look at examples with "
                "`conche ner`.",
                [(f"sum by (label) (increase(conche_entities_total{{{MODEL}}}[$__range]))", "{{label}}")],
                kind="stat",
                width=12,
                decimals=0,
            ),
            Panel(
                "How many entities has a text?",
                "Mean over answered texts. Near 0: texts without names, or in a language that the "
                "model does not know.",
                [
                    (
                        f"{rate('conche_entities_total', 'model')} / {rate('conche_texts_total', 'model')}",
                        "{{model}}",
                    )
                ],
                width=12,
                decimals=2,
            ),
        ),
    ),
    (
        "Work",
        (
            Panel(
                "How many requests for entities arrive, by status?",
                "Requests to /ner per second.",
                [(rate("conche_requests_total", "status", 'route="/ner"'), "{{status}}")],
                unit="reqps",
            ),
            Panel(
                "How long do callers of /ner wait?",
                "A long document is many windows: it waits longer than a sentence.",
                quantiles("conche_request_duration_seconds", "", 'route="/ner"'),
                unit="s",
                thresholds=UP_TO_A_SECOND,
            ),
            Panel(
                "How long are the texts?",
                "Tokens run per answered text, equal windows counted once. The model reads 512 at a time.",
                [
                    (
                        f"{rate('conche_tokens_total', 'model')} / {rate('conche_texts_total', 'model')}",
                        "{{model}} tokens",
                    )
                ],
            ),
        ),
    ),
)

# How much more it can do, and what it takes.
CAPACITY: Rows = (
    (
        "Engine",
        (
            Panel(
                "How busy is the engine?",
                "Of the seconds that its streams have, those that runs took; models share them, so their sum "
                "stays below 100 %. Near that for long: the process is at its capacity.",
                [(BUSY, "{{model}}")],
                unit="percentunit",
                thresholds=((None, GREEN), (0.7, YELLOW), (0.9, RED)),
            ),
            Panel(
                "How many tokens could it run?",
                "Tokens per second of engine time: what the process does when it is busy all the "
                "time, as the texts are now. The distance to what it does now is what is left.",
                [
                    (
                        (
                            f"sum(rate(conche_tokens_total{WINDOW})) "
                            f"/ sum(rate(conche_inference_stream_seconds_total{WINDOW})) "
                            f"* max(sum by (model) (avg_over_time(conche_inference_streams{WINDOW})))"
                        ),
                        "could",
                    ),
                    (per_second("conche_tokens_total"), "does"),
                ],
                unit="cps",
            ),
            Panel(
                "How many batches run at a time?",
                "Streams. With OpenVINO, by default: one at rest, two while several texts are at work.",
                [(f"conche_inference_streams{{{MODEL}}}", "{{model}}")],
            ),
            Panel(
                "How many tokens and texts are worked through?",
                "Per second; padding not counted.",
                [
                    (rate("conche_tokens_total", "model"), "{{model}} tokens"),
                    (rate("conche_texts_total", "model"), "{{model}} texts"),
                ],
                unit="cps",
            ),
            Panel(
                "How many CPUs are in use, of those it may use?",
                "CPU seconds per second of each worker, and the threads that run models. Used far below the "
                "threads under full load: the CPU quota is lower than the service believes.",
                [
                    (f"rate(process_cpu_seconds_total{{{PROCESS}}}{WINDOW})", f"{EACH} used"),
                    (f"max by (instance) (conche_inference_threads{{{MODEL}}})", "{{instance}} threads"),
                ],
                dashed=[".* threads"],
            ),
        ),
    ),
    (
        "Queues",
        (
            Panel(
                "How full is each queue?",
                "Share of the places for texts and tokens that are taken. At 100 % requests are answered "
                "429.",
                [
                    (f"conche_queue_depth_items{{{MODEL}}} / conche_queue_limit_items", "{{model}} texts"),
                    (f"conche_queue_depth_tokens{{{MODEL}}} / conche_queue_limit_tokens", "{{model}} tokens"),
                ],
                unit="percentunit",
                thresholds=((None, GREEN), (0.5, YELLOW), (0.9, RED)),
            ),
            Panel(
                "How many texts wait, and how many may?",
                "Depth and limit of each model's queue.",
                [
                    (f"conche_queue_depth_items{{{MODEL}}}", "{{model}}"),
                    (f"conche_queue_limit_items{{{MODEL}}}", "{{model}} limit"),
                ],
                dashed=[".* limit"],
            ),
            Panel(
                "How long is the queue, in time?",
                "Tokens that wait over tokens that are run in a second. Above a second, callers notice.",
                [
                    (
                        (
                            f"sum by (model) (conche_queue_depth_tokens{{{MODEL}}}) "
                            f"/ {rate('conche_tokens_total', 'model')}"
                        ),
                        "{{model}}",
                    )
                ],
                unit="s",
                thresholds=UP_TO_A_SECOND,
            ),
            Panel(
                "What is refused, and for which reason?",
                "Requests per second refused by a limit or for want of capacity. The reason is the error's "
                "code, which names the setting to change.",
                [(rate("conche_refusals_total", "reason", ""), "{{reason}}")],
                unit="reqps",
            ),
        ),
    ),
    (
        "Batches",
        (
            Panel(
                "How full are batches?",
                "Mean tokens of a batch over those that it may have. Near 1: the engine never waits. "
                "Low although the queue is full: `CONCHE_BATCHING__MAX_BATCH_SIZE` is reached first.",
                [
                    (
                        (
                            f"{mean('conche_batch_tokens', 'model')} "
                            "/ on (model) max by (model) (conche_batch_limit_tokens)"
                        ),
                        "{{model}}",
                    )
                ],
                unit="percentunit",
            ),
            Panel(
                "How many texts run together?",
                "Mean and p95 of texts per run. Near 1 under load: requests come one at a time, or texts "
                "are long.",
                [
                    (mean("conche_batch_size", "model"), "{{model}} mean"),
                    (
                        quantile(0.95, "conche_batch_size", "le, model"),
                        "{{model}} p95",
                    ),
                ],
            ),
            Panel(
                "How much do batches grow by padding?",
                "Tokens that layers compute over those of the texts. With ONNX Runtime the rest is padding: "
                "above 1.5 texts of very unlike length meet. With OpenVINO it is rounding up, most for one "
                "short text.",
                [
                    (mean("conche_padding_ratio", "model"), "{{model}} mean"),
                    (
                        quantile(0.95, "conche_padding_ratio", "le, model"),
                        "{{model}} p95",
                    ),
                ],
                thresholds=((None, GREEN), (1.5, YELLOW), (2, RED)),
                decimals=2,
            ),
            Panel(
                "Are texts cut short?",
                "Texts per second cut to what the model reads, because the caller or `CONCHE_TRUNCATE` "
                "said so. Their end has no part in the vector.",
                [(rate("conche_truncated_texts_total", "model"), "{{model}}")],
                unit="cps",
            ),
        ),
    ),
    (
        "Process",
        (
            Panel(
                "How much memory does the process hold?",
                "Resident memory, of each worker. It should level off after the first minutes of traffic.",
                [(f"process_resident_memory_bytes{{{PROCESS}}}", EACH)],
                unit="bytes",
            ),
            Panel(
                "Do threads or open files grow?",
                "Of each worker. Both should be level; a steady climb is a leak.",
                [
                    (f"process_threads{{{PROCESS}}}", f"{EACH} threads"),
                    (f"process_open_fds{{{PROCESS}}}", f"{EACH} open files"),
                ],
            ),
            Panel(
                "How often does the garbage collector run?",
                "Per second, by generation. Generation 2 goes through everything: more than once in "
                "some seconds costs latency.",
                [
                    (
                        f"sum by (generation) (rate(python_gc_collections_total{{{PROCESS}}}{WINDOW}))",
                        "generation {{generation}}",
                    )
                ],
                unit="cps",
            ),
            Panel(
                "How much memory does an entry of the FAQ take?",
                "Resident memory over entries, models and all; it falls as a FAQ grows, to 5 or 6 KB.",
                [
                    (
                        f"sum(process_resident_memory_bytes{{{PROCESS}}}) / sum(conche_faq_entries)",
                        "bytes an entry",
                    )
                ],
                unit="bytes",
            ),
        ),
    ),
)


def panels(rows: Rows) -> Iterator[dict[str, Any]]:
    """Rows with their panels, numbered and placed."""
    number, y = 1, 0
    for title, members in rows:
        place = {"x": 0, "y": y, "w": 24, "h": 1}
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": place,
        }
        number, y, x, height = number + 1, y + 1, 0, 0
        for panel in members:
            if x + panel.width > 24:
                x, y, height = 0, y + height, 0
            rendered = panel.render(number, x, y)
            yield rendered
            number, x, height = number + 1, x + panel.width, max(height, rendered["gridPos"]["h"])
        y += height


def _variable(name: str, label: str, values: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": values, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def dashboard(uid: str, title: str, description: str, rows: Rows) -> dict[str, Any]:
    """Grafana's JSON for a whole dashboard."""
    routes = f'label_values(conche_request_duration_seconds_count{{route!~"{PROBES}"}}, route)'
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["conche"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "graphTooltip": 1,
        # From one to the others, with the time and variables chosen here.
        "links": [
            {
                "title": "Conche",
                "type": "dashboards",
                "tags": ["conche"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {"text": "Prometheus", "value": "prometheus"},
                },
                _variable("route", "Route", routes),
                _variable("model", "Model", "label_values(conche_model_healthy, model)"),
            ]
        },
        "panels": list(panels(rows)),
    }


DASHBOARDS = {
    f"{name}.json": dashboard(f"conche-{name}", f"Conche: {name}", description, rows)
    for name, description, rows in (
        ("overview", "Is it up, does it keep its objectives, what arrives, and what is refused.", OVERVIEW),
        ("latency", "Which stage of a request takes the time.", LATENCY),
        ("faq", "Do queries get answers, how sure are they, and is the store well.", FAQ),
        ("ner", "Which entities are found, and in what.", NER),
        (
            "capacity",
            "How much more can a process do, how long are its queues, and what does it take.",
            CAPACITY,
        ),
    )
}


def main() -> None:
    """Write every dashboard."""
    for name, content in DASHBOARDS.items():
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (FOLDER / name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
