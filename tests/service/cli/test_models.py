"""What is here is listed, checked and made from the command line; faults are named, and leave nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from model.runtime.bundle import Bundle
from service.cli import main
from tests.bundles import (
    refresh_manifest,
    write_tiny_classifier_bundle,
    write_tiny_embedding_bundle,
    write_tiny_ner_bundle,
)
from tests.fakes import without_home
from tests.model.encoder.checkpoints import change_json, reference_model, save_checkpoint, save_tensors


def run(*arguments: str | Path) -> Result:
    """`conche ARGUMENTS`."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def models_dir(tmp_path: Path) -> Path:
    """One bundle of each task."""
    folder = tmp_path / "models"
    write_tiny_embedding_bundle(folder / "tiny-embedding")
    write_tiny_ner_bundle(folder / "tiny-ner")
    return folder


def test_the_list_shows_what_one_chooses_by(models_dir: Path) -> None:
    """Task, what it gives, licence and size of each bundle."""
    result = run("models", "--models-dir", models_dir)
    assert result.exit_code == 0
    header, *rows = result.output.splitlines()
    assert header.split() == ["NAME", "TASK", "GIVES", "LANGUAGES", "LICENCE", "MB", "QUALITY"]
    embedding, ner = rows
    assert "tiny-embedding" in embedding
    assert "32 dims" in embedding
    assert "PER,LOC,ORG" in ner
    for row, name in ((embedding, "tiny-embedding"), (ner, "tiny-ner")):
        assert Bundle.load(models_dir / name).manifest.licence in row


def test_a_classifier_is_listed_with_its_labels_and_verified(tmp_path: Path) -> None:
    """Its labels are no entity types: none is left out, nor cut at a hyphen."""
    refresh_manifest(write_tiny_classifier_bundle(tmp_path / "tiny"), labels=["O", "B-refund", "other"])
    assert "O,B-refund,other" in run("models", "--models-dir", tmp_path).output
    assert "4 golden texts within" in run("models", "--models-dir", tmp_path, "verify").output


def test_json_holds_the_manifests(models_dir: Path) -> None:
    """For scripts; with the digest that an index records."""
    listed = json.loads(run("models", "--models-dir", models_dir, "--json").output)
    assert [entry["name"] for entry in listed] == ["tiny-embedding", "tiny-ner"]
    assert listed[0]["digest"] == Bundle.load(models_dir / "tiny-embedding").digest
    assert listed[1]["labels"][0] == "O"


def test_a_broken_bundle_is_named_and_hides_no_other(models_dir: Path) -> None:
    """One bad folder must not make the list fail."""
    (models_dir / "tiny-ner" / "graph.onnx").unlink()
    result = run("models", "--models-dir", models_dir)
    assert result.exit_code == 0
    assert "tiny-embedding" in result.output
    assert "tiny-ner: cannot be used (files: tiny-ner: missing graph.onnx)" in result.output


def test_an_empty_folder_says_how_to_fill_it(tmp_path: Path) -> None:
    """The next step, not a blank."""
    assert "conche export" in run("models", "--models-dir", tmp_path).output


def test_verify_recomputes_the_golden_texts(models_dir: Path) -> None:
    """The same checks as at the start of the service, by name or by path."""
    for name in ("tiny-ner", models_dir / "tiny-embedding"):
        result = run("models", "--models-dir", models_dir, "verify", name)
        assert result.exit_code == 0, result.output
        assert "golden texts within" in result.output


def test_verify_names_the_check_that_fails(models_dir: Path) -> None:
    """A file of the right size with other bytes is what only a digest finds."""
    path = models_dir / "tiny-ner" / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:-1] + b" ")
    result = run("models", "--models-dir", models_dir, "verify", "tiny-ner")
    assert result.exit_code != 0
    assert "sha256: tiny-ner/tokenizer.json" in result.output


def test_verify_without_a_name_checks_all_and_hides_no_failure(models_dir: Path) -> None:
    """The ones behind a broken bundle are checked too."""
    result = run("models", "--models-dir", models_dir, "verify")
    assert result.exit_code == 0, result.output
    assert result.output.count("golden texts within") == 2
    (models_dir / "tiny-embedding" / "graph.onnx").unlink()
    result = run("models", "--models-dir", models_dir, "verify")
    assert result.exit_code == 1
    assert "tiny-embedding: files: tiny-embedding: missing graph.onnx" in result.output
    assert "tiny-ner: " in result.output
    assert run("models", "--models-dir", models_dir / "none", "verify").exit_code == 1


@pytest.mark.parametrize("command", ["verify", "measure"])
def test_a_name_that_is_not_there_is_answered_with_those_that_are(models_dir: Path, command: str) -> None:
    """A slip of the finger, or the wrong folder: both show."""
    result = run("models", "--models-dir", models_dir, command, "nope")
    assert result.exit_code == 1
    assert f"no bundle nope in {models_dir}, which has tiny-embedding, tiny-ner" in result.output


def test_measure_records_on_request(models_dir: Path, tmp_path: Path) -> None:
    """Figures reach the manifest only when told to."""
    pairs = tmp_path / "pairs.jsonl"
    rows = [("cat mat", "cat mat", 5), ("cat mat", "cat order", 2), ("cat mat", "refund password", 0)]
    pairs.write_text("\n".join(json.dumps({"a": a, "b": b, "score": score}) for a, b, score in rows))
    command = ("models", "--models-dir", models_dir, "measure", "tiny-embedding", "--sts", f"pairs={pairs}")
    assert json.loads(run(*command).output) == {"pairs": {"spearman_x100": 100.0}}
    assert "pairs" not in Bundle.load(models_dir / "tiny-embedding").manifest.quality
    run(*command, "--record")
    assert Bundle.load(models_dir / "tiny-embedding").manifest.quality["pairs"] == {"spearman_x100": 100.0}
    assert "pairs spearman_x100 100" in run("models", "--models-dir", models_dir).output


def test_listing_and_verifying_need_no_torch(models_dir: Path) -> None:
    """The serving image has none."""
    program = (
        "import sys\nfrom click.testing import CliRunner\nfrom service.cli import main\n"
        f"arguments = ['models', '--models-dir', {str(models_dir)!r}]\n"
        "assert CliRunner().invoke(main, arguments).exit_code == 0\n"
        "assert CliRunner().invoke(main, [*arguments, 'verify', 'tiny-ner']).exit_code == 0\n"
        "heavy = [name for name in ('torch', 'onnx', 'transformers') if name in sys.modules]\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_import_says_what_is_in_a_checkpoint(tmp_path: Path) -> None:
    """Known tensors of no use are listed, not passed over."""
    model = reference_model("bert", "pre-training")
    folder = save_checkpoint(model, tmp_path / "checkpoint")
    facts = json.loads(run("import", folder, "--json").output)
    assert (facts["family"], facts["architecture"]) == ("bert", "BertForPreTraining")
    assert "bert.pooler.dense.weight" in facts["known_and_unused"]
    assert "cls.seq_relationship.bias" in facts["known_and_unused"]
    assert facts["tensors_loaded"] == 5 + 3 * 16
    text = run("import", folder).output
    assert "cls.seq_relationship.bias" in text
    assert "pooling:              none" in text


def test_import_says_what_a_classifiers_scores_are(tmp_path: Path) -> None:
    """Before anything is exported."""
    save_checkpoint(reference_model("bert", "sequence-classification", label_names=["relevant"]), tmp_path)
    facts = json.loads(run("import", tmp_path, "--json").stdout)
    assert (facts["task"], facts["labels"], facts["label_activation"]) == (
        "sequence-classification",
        ["relevant"],
        "sigmoid",
    )
    refused = run("export", tmp_path, "-o", tmp_path / "bundle", "--task", "embedding")
    assert refused.exit_code == 1
    assert "makes no embedding model" in refused.output


def test_export_writes_a_bundle_that_verifies(tmp_path: Path) -> None:
    """The documented command, on a small BERT."""
    folder = save_checkpoint(reference_model("bert"), tmp_path / "checkpoint")
    target = tmp_path / "models" / "mine"
    result = run("export", folder, "-o", target, "--licence", "MIT", "--languages", "en, zh")
    assert result.exit_code == 0, result.output
    for said in (
        "mean is taken",
        "53 tensors loaded",
        "16, mean pooling",
        "graph - PyTorch",
        "cosine at least",
    ):
        assert said in result.output
    manifest = Bundle.load(target).manifest
    assert (manifest.name, manifest.licence, manifest.languages) == ("mine", "MIT", ("en", "zh"))
    assert run("models", "verify", target).exit_code == 0
    again = run("export", folder, "-o", target)
    assert again.exit_code != 0
    assert "exists" in again.output


@pytest.mark.parametrize("name", ["my model", "模型"])
def test_a_name_that_no_bundle_can_have_is_refused_at_once(tmp_path: Path, name: str) -> None:
    """Before the checkpoint is even looked at; the folder's name is the bundle's."""
    folder = save_checkpoint(reference_model("bert"), tmp_path / "checkpoint")
    result = run("export", folder, "-o", tmp_path / name)
    assert result.exit_code == 1
    assert f"Error: a bundle cannot be called {name!r}" in result.output
    assert "reading" not in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]


@pytest.mark.parametrize("command", [("import",), ("export", "-o", "bundle")])
def test_a_folder_that_does_not_exist_is_said_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """Not the packages that are missing, nor the hub that cannot be reached."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    absolute = run(*command, tmp_path / "nowhere")
    assert absolute.exit_code == 1
    assert absolute.output == f"Error: there is no folder {tmp_path / 'nowhere'} here\n"
    relative = run(*command, "checkpoints/nowhere")
    assert relative.exit_code == 1
    assert relative.output.startswith("there is no folder checkpoints/nowhere here")
    without_home(monkeypatch)
    homeless = run(*command, "~/nowhere")
    assert homeless.exit_code == 1
    assert homeless.output == "Error: there is no folder ~/nowhere here\n"


def test_missing_packages_are_named_with_the_ways_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make serve` makes an environment without them."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "onnx", None)
    result = run("import", tmp_path)
    assert result.exit_code == 1
    for words in ("torch, onnx.", ".venv-dev", "make test", "make setup-test", "pip install -e '.[train]'"):
        assert words in result.output


def test_a_missing_shard_stops_the_export(tmp_path: Path) -> None:
    """An interrupted download: the missing file is named and no bundle is left behind."""
    folder = save_checkpoint(reference_model("bert"), tmp_path / "checkpoint", layout="sharded safetensors")
    (folder / "model-00002-of-00002.safetensors").unlink()
    result = run("export", folder, "-o", tmp_path / "bundle")
    assert result.exit_code != 0
    assert "model-00002-of-00002.safetensors" in result.output
    assert "Traceback" not in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]


def test_a_dense_layer_is_refused_by_name(tmp_path: Path) -> None:
    """Left out, it would give vectors of the wrong width and no error."""
    folder = save_checkpoint(reference_model("bert"), tmp_path / "checkpoint")
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    result = run("export", folder, "-o", tmp_path / "bundle")
    assert result.exit_code != 0
    assert "Dense" in result.output
    assert not (tmp_path / "bundle").exists()


def test_a_foreign_architecture_is_refused_with_the_supported_ones(tmp_path: Path) -> None:
    """The reader learns what would work."""
    folder = save_checkpoint(reference_model("bert"), tmp_path / "checkpoint")
    change_json(folder / "config.json", model_type="gpt2", architectures=["GPT2Model"])
    result = run("import", folder)
    assert result.exit_code != 0
    assert "gpt2" in result.output
    for family in ("bert", "roberta", "xlm-roberta", "distilbert"):
        assert family in result.output


def test_unknown_tensors_are_all_listed(tmp_path: Path) -> None:
    """One round trip, not one a tensor."""
    folder = save_checkpoint(reference_model("bert"), tmp_path / "checkpoint")
    state = {name: value.clone() for name, value in reference_model("bert").state_dict().items()}
    first, second = sorted(state)[:2]
    state["strange.one"], state["strange.two"] = state.pop(first), state.pop(second)
    save_tensors(state, folder)
    result = run("import", folder)
    assert result.exit_code != 0
    for name in ("strange.one", "strange.two", first, second):
        assert name in result.output


def test_renew_says_what_is_wrong(models_dir: Path) -> None:
    """A bundle that was not made from an encoder cannot be traced anew."""
    result = run("models", "--models-dir", models_dir, "renew", "tiny-embedding")
    assert result.exit_code == 1
    assert "num_hidden_layers must be at least 1" in result.output
    assert "no bundle absent" in run("models", "--models-dir", models_dir, "renew", "absent").output
