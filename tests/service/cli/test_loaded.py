"""``conche models load``: against a running server."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from service.api_keys import KeyFile, new_key, write_keys
from service.cli import main
from tests.service.cli.test_serve import HANG_S, Running, _start


def run(*arguments: str) -> Result:
    """`conche models ARGUMENTS`."""
    return CliRunner().invoke(main, ["models", *arguments])


def test_models_of_a_running_server_are_changed(models_folder: Path) -> None:
    """Loaded, shown, unloaded; what cannot be done is said in the server's words."""
    process = _start(models_folder, CONCHE_ADMIN="true")
    try:
        url = Running(process).url
        assert "tiny-spare serves (" in run("load", "tiny-spare", "--url", url).output
        shown = run("loaded", "--url", url).output
        assert "tiny-embedding  embedding, default, healthy" in shown
        assert "tiny-spare  embedding, healthy" in shown
        twice = run("load", "tiny-spare", "--url", url)
        assert (twice.exit_code, "is loaded already" in twice.output) == (1, True)
        left = run("unload", "tiny-spare", "--url", url)
        assert (left.exit_code, "tiny-spare  embedding" in left.output) == (0, False)
    finally:
        process.kill()
        process.communicate(timeout=HANG_S)


def test_a_key_is_sent_where_one_is_needed(models_folder: Path, tmp_path: Path) -> None:
    """By flag or variable; the variable stops no service that is started beside it."""
    key, record = new_key("ops", ["admin"])
    write_keys(tmp_path / "keys.json", KeyFile(keys=(record,)))
    process = _start(
        models_folder,
        CONCHE_ADMIN="true",
        CONCHE_API_KEYS_FILE=str(tmp_path / "keys.json"),
        CONCHE_API_KEY=key,
        CONCHE_FAQ_STORE="none",
    )
    try:
        url = Running(process).url
        without = run("loaded", "--url", url)
        assert (without.exit_code, "send an API key" in without.output) == (1, True)
        assert "tiny-embedding" in run("loaded", "--url", url, "--api-key", key).output
        by_variable = CliRunner().invoke(
            main, ["models", "loaded", "--url", url], env={"CONCHE_API_KEY": key}
        )
        assert "tiny-embedding" in by_variable.output
    finally:
        process.kill()
        process.communicate(timeout=HANG_S)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "ftp://a", "127.0.0.1"])
def test_a_server_that_is_not_there_is_one_line(url: str) -> None:
    """No traceback."""
    result = run("loaded", "--url", url)
    assert result.exit_code in {1, 2}
    assert "Traceback" not in result.output
    assert "reached" in result.output or "must begin with" in result.output
