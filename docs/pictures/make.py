"""Makes the pictures beside it anew, and their manifest, from running programs and nothing else.

    .venv-dev/bin/python docs/pictures/make.py [--minutes N] [NAME ...]

Needs Chromium with Chinese fonts, Prometheus, and what `make setup-test` installs. Pages are photographed as
a browser shows them. The dashboards are drawn by ``panels`` from what a real Prometheus answers after so many
minutes of ``deploy/smoke/traffic.py``, since Grafana is not at hand.
"""

import argparse
import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from panels import WIDTH, Prometheus, page
from PIL import Image

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
CONCHE: Final = Path(sys.executable).with_name("conche")
# Texts, and what is right in them.
NOTES: Final = (
    (
        "Ada Lovelace met Charles Babbage in London, where he lived in Dorset Street.",
        (("Ada Lovelace", "PER"), ("Charles Babbage", "PER"), ("London", "LOC"), ("Dorset Street", "LOC")),
    ),
    (
        "张三昨天从上海飞往巴黎，和联合国教科文组织的李娜见面。",
        (("张三", "PER"), ("上海", "LOC"), ("巴黎", "LOC"), ("联合国教科文组织", "ORG"), ("李娜", "PER")),
    ),
    (
        "In 2019 Angela Merkel opened a new terminal in Berlin together with Siemens.",
        (("Angela Merkel", "PER"), ("Berlin", "LOC"), ("Siemens", "ORG")),
    ),
    (
        "北京大学的王伟下周去广州参加会议，之后回杭州。",
        (("北京大学", "ORG"), ("王伟", "PER"), ("广州", "LOC"), ("杭州", "LOC")),
    ),
)
MAX_BYTES: Final = 150_000
SCRAPE_S: Final = 5
DASHBOARDS: Final = ("overview", "latency", "capacity", "faq", "ner")
CHROMIUM_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=8000",
)


def photograph(url: str, name: str, *, height: int, width: int = WIDTH) -> None:
    """Have Chromium draw ``url``, and keep it as NAME.png with at most 256 colours."""
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / "drawn.png"
        subprocess.run(
            [
                "chromium",
                *CHROMIUM_FLAGS,
                f"--user-data-dir={folder}/profile",
                f"--window-size={width},{height}",
                f"--screenshot={drawn}",
                url,
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
        with Image.open(drawn) as picture:
            whole = picture.convert("RGB")
    for colours in (256, 64, 24):
        content = io.BytesIO()
        whole.quantize(colours, dither=Image.Dither.NONE).save(content, "PNG", optimize=True)
        if content.tell() <= MAX_BYTES:
            break
    else:
        raise SystemExit(f"{name}.png would have {content.tell()} bytes; at most {MAX_BYTES}")
    (HERE / f"{name}.png").write_bytes(content.getvalue())
    print(f"{name}.png: {content.tell()} bytes, {colours} colours")


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
    return port


@contextmanager
def running(command: list[str], ready: str, **options: Any) -> Iterator[None]:
    """A program in the background, from when ``ready`` answers 200 to the end of the block."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        for _ in range(3000):
            try:
                with urllib.request.urlopen(ready, timeout=5):
                    break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit(f"{command[0]} ended with {process.returncode}") from None
                time.sleep(0.2)
        else:
            raise SystemExit(f"{command[0]} does not get ready")
        yield
    finally:
        process.terminate()
        process.wait(60)


def conche(*arguments: str, folder: Path) -> None:
    """Run a command of ours in ``folder``, so that no page shows a path of this machine."""
    subprocess.run(
        [str(CONCHE), *arguments], cwd=folder, check=True, env=environment(folder), stdout=subprocess.DEVNULL
    )


def environment(folder: Path) -> dict[str, str]:
    """Variables for ours: the checkout's models, data in ``folder``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CONCHE_")}
    return kept | {
        "CONCHE_MODELS_DIR": str(ROOT / "models"),
        "CONCHE_DATA_DIR": str(folder / "data"),
        "CONCHE_ENGINE": "onnxruntime",
    }


def ner_page(folder: Path) -> None:
    """`conche ner --html`."""
    for number, (text, _) in enumerate(NOTES, 1):
        (folder / f"note-{number}.txt").write_text(text, encoding="utf-8")
    files = [part for number in range(1, len(NOTES) + 1) for part in ("--file", f"note-{number}.txt")]
    conche("ner", "--html", "notes.html", *files, folder=folder)
    photograph((folder / "notes.html").as_uri(), "ner-page", height=470, width=900)


def faq_report(folder: Path) -> None:
    """The report of `conche faq eval` on the FAQ that comes with the project."""
    shutil.copy(ROOT / "service" / "faq" / "demo.jsonl", folder / "shop.jsonl")
    shutil.copy(ROOT / "service" / "faq" / "demo_queries.jsonl", folder / "questions.jsonl")
    conche("faq", "import", "shop.jsonl", "-c", "shop", folder=folder)
    conche("faq", "eval", "questions.jsonl", "-c", "shop", folder=folder)
    photograph((folder / "faq-eval.html").as_uri(), "faq-report", height=1100, width=1000)


def tagger_report(folder: Path) -> None:
    """The report of `conche eval ner` on the shipped tagger and the notes."""
    lines = [
        json.dumps({"text": text, "spans": [_span(text, *entity) for entity in entities]}, ensure_ascii=False)
        for text, entities in NOTES
    ]
    (folder / "notes.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    bundle = str(ROOT / "models" / "ner-zh-en")
    conche("eval", "ner", bundle, "notes.jsonl", "--html", "report.html", folder=folder)
    photograph((folder / "report.html").as_uri(), "tagger-report", height=1100, width=1000)


def _span(text: str, entity: str, label: str) -> dict[str, Any]:
    start = text.index(entity)
    return {"start": start, "end": start + len(entity), "label": label}


@contextmanager
def watching(folder: Path, conche_port: int) -> Iterator[str]:
    """Prometheus as the project sets it up, over a service on this machine; its URL."""
    port = free_port()
    settings = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    del settings["alerting"]
    targets = {"conche": f"127.0.0.1:{conche_port}", "prometheus": f"127.0.0.1:{port}"}
    settings["scrape_configs"] = [
        {"job_name": name, "static_configs": [{"targets": [target]}]} for name, target in targets.items()
    ]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    for name in settings["rule_files"]:
        shutil.copy(ROOT / "deploy" / "prometheus" / name, folder / name)
    command = [
        "prometheus",
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=series",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    url = f"http://127.0.0.1:{port}"
    with running(command, f"{url}/-/ready", cwd=folder):
        yield url


def watched(folder: Path, minutes: float) -> None:
    """The service's own page, and the dashboards after so many minutes of traffic."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    serve = [str(CONCHE), "serve", "--port", str(port)]
    with (
        running(serve, f"{base}/readyz", cwd=folder, env=environment(folder)),
        watching(folder, port) as prometheus,
    ):
        photograph(f"{base}/docs", "api-page", height=1000)
        start = time.time()
        while time.time() < start + minutes * 60:
            traffic = [sys.executable, str(ROOT / "deploy" / "smoke" / "traffic.py"), base, "2"]
            subprocess.run(traffic, check=False)  # which says what went wrong; the pictures show it, too
            time.sleep(1)
        seen = Prometheus(prometheus, start + 6 * SCRAPE_S, time.time(), SCRAPE_S, f"{6 * SCRAPE_S}s")
        for name in DASHBOARDS:
            file = ROOT / "deploy" / "grafana" / "dashboards" / f"{name}.json"
            text, height = page(json.loads(file.read_text(encoding="utf-8")), seen)
            (folder / f"{name}.html").write_text(text, encoding="utf-8")
            photograph(
                (folder / f"{name}.html").as_uri(), f"dashboard-{name}", height=height, width=WIDTH + 16
            )


def alerted(folder: Path) -> None:
    """Prometheus' pages where the service does not answer, and it is time to say so."""
    with watching(folder, free_port()) as prometheus:
        time.sleep(90)  # ConcheDown is for one minute
        pages = f"{prometheus}/classic"  # Debian's package has the pages of old, and no others
        try:
            urllib.request.urlopen(f"{pages}/alerts").close()
        except urllib.error.HTTPError:
            pages = prometheus
        photograph(f"{pages}/alerts", "prometheus-alerts", height=900)
        photograph(f"{pages}/targets", "prometheus-targets", height=420)


MADE_FROM: Final = {
    "ner-page": "conche ner --html",
    "faq-report": "conche faq eval, over the FAQ and questions of service/faq/demo*.jsonl",
    "tagger-report": "conche eval ner, over the bundle ner-zh-en and the notes in make.py",
    "api-page": "/docs of conche serve",
    **{
        f"dashboard-{name}": f"deploy/grafana/dashboards/{name}.json, drawn by panels.py and not by Grafana, "
        "from what Prometheus scraped of conche serve under deploy/smoke/traffic.py"
        for name in DASHBOARDS
    },
    "prometheus-alerts": "/alerts of Prometheus with deploy/prometheus, where no service answers",
    "prometheus-targets": "/targets of the same",
}


def _version(program: str) -> str:
    said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    return said.split("(", maxsplit=1)[0].split(" built", maxsplit=1)[0].strip().removesuffix(",")


def write_manifest() -> None:
    """Digest, size and origin of each picture that is there."""
    pictures = {
        path.name: {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "made_from": MADE_FROM[path.stem],
        }
        for path in sorted(HERE.glob("*.png"))
    }
    manifest = {
        "made_by": "docs/pictures/make.py",
        "programs": [_version("chromium"), _version("prometheus")],
        "licence": "Apache-2.0",
        "pictures": pictures,
    }
    (HERE / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Make all pictures, or those named."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    makers: dict[str, Callable[[Path], None]] = {
        "ner": ner_page,
        "faq": faq_report,
        "tagger": tagger_report,
        "alerted": alerted,
    }
    arguments.add_argument("--minutes", type=float, default=5.0, help="of traffic; default 5")
    arguments.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*makers, "watched"]))
    chosen = arguments.parse_args()
    makers["watched"] = lambda folder: watched(folder, chosen.minutes)
    for name, maker in makers.items():
        if name in chosen.names or not chosen.names:
            with tempfile.TemporaryDirectory() as folder:
                maker(Path(folder))
    write_manifest()


if __name__ == "__main__":
    main()
