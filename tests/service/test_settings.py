"""Settings: one list of them, typos refused, contradictions refused."""

import re
from pathlib import Path

import pytest

from service.settings import (
    InvalidSettingsError,
    Settings,
    load_settings,
    markdown_table,
    options,
    unknown_variables,
)
from tests.fakes import without_home

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_variables_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in options():
        monkeypatch.delenv(option.variable, raising=False)


def test_defaults_listen_on_loopback_only() -> None:
    """Nobody is exposed by starting it."""
    settings = load_settings()
    assert (settings.host, settings.port) == ("127.0.0.1", 8080)


def test_variables_are_read_and_flags_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag on one command line beats what the environment says for all; the rest of a group stays."""
    monkeypatch.setenv("CONCHE_PORT", "9000")
    monkeypatch.setenv("CONCHE_BATCHING__MAX_WAIT_MS", "5")
    monkeypatch.setenv("CONCHE_BATCHING__MAX_BATCH_SIZE", "8")
    settings = load_settings({("batching", "max_wait_ms"): "2.5"})
    assert (settings.port, settings.batching.max_wait_ms, settings.batching.max_batch_size) == (9000, 2.5, 8)


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose files hand on ``${NAME:-}``."""
    monkeypatch.setenv("CONCHE_PORT", "")
    assert load_settings().port == 8080


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CONCHE_API_KEYS_FILE", "~/keys"),
        ("CONCHE_DATA_DIR", "~/data"),
        ("CONCHE_EMBEDDING_BUNDLE", "one, ~/other"),
        ("CONCHE_FAQ_FILE", "~/faq.csv"),
        ("CONCHE_MODELS_DIR", "~"),
        ("CONCHE_NER_BUNDLE", "~nobody-of-that-name/tagger"),
        ("CONCHE_OPENAI_VOCABULARY", "~/vocabulary"),
    ],
)
def test_a_path_in_a_home_that_is_not_known_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """With the setting's name, and before anything is begun."""
    monkeypatch.setenv(name, value)
    if "nobody" not in value:
        monkeypatch.setenv("HOME", "/home/someone")
        load_settings()
        without_home(monkeypatch)
    with pytest.raises(InvalidSettingsError, match=f"{name}.*~.*the home folder is not known"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CONCHE_PROT", "CONCHE_PORT"),
        ("CONCHE_MAX_WAIT_MS", "CONCHE_BATCHING__MAX_WAIT_MS"),
        ("CONCHE_BATCHING_MAX_QUEUE_ITEMS", "CONCHE_BATCHING__MAX_QUEUE_ITEMS"),
        ("CONCHE_LIMITS", "CONCHE_LIMITS__MAX_INPUTS"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_nearest_name(name: str, meant: str) -> None:
    """A limit that its author believes in must not be ignored."""
    with pytest.raises(InvalidSettingsError, match=name) as caught:
        load_settings(environ={name: "1"})
    assert meant.split("__", maxsplit=1)[0] in str(caught.value)


def test_the_variables_kubernetes_writes_for_a_service_are_no_typos(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Service called "conche" puts these into every pod beside it; the service must still start."""
    links = {
        "CONCHE_SERVICE_HOST": "10.0.0.7",
        "CONCHE_SERVICE_PORT": "8080",
        "CONCHE_SERVICE_PORT_HTTP": "8080",
        "CONCHE_PORT": "tcp://10.0.0.7:8080",
        "CONCHE_PORT_8080_TCP": "tcp://10.0.0.7:8080",
        "CONCHE_PORT_8080_TCP_ADDR": "10.0.0.7",
    }
    for name, value in links.items():
        monkeypatch.setenv(name, value)
    assert load_settings().port == 8080


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({("port",): "99999"}, r"CONCHE_PORT \(--port\): .*65535"),
        ({("threads",): "many"}, r"CONCHE_THREADS \(--threads\)"),
        ({("threads",): "0"}, r"CONCHE_THREADS .*from 1 to 1024"),
        ({("streams",): "0"}, r"CONCHE_STREAMS .*from 1 to 64"),
        ({("streams",): "65"}, r"CONCHE_STREAMS .*from 1 to 64"),
        ({("batching", "max_wait_ms"): "nan"}, r"CONCHE_BATCHING__MAX_WAIT_MS"),
        ({("log_level",): "loud"}, r"CONCHE_LOG_LEVEL .*'debug'"),
        (
            {("limits", "max_text_characters"): "5000000"},
            r"CONCHE_LIMITS__MAX_TOTAL_CHARACTERS \(4000000\) .*_MAX_TEXT_CHARACTERS \(5000000\)",
        ),
        (
            {("limits", "request_seconds"): "10"},
            r"CONCHE_LIMITS__REQUEST_SECONDS \(10\) .* CONCHE_BATCHING__STALL_TIMEOUT_SECONDS \(60\)",
        ),
        ({("input_ids",): "cl100k"}, r"CONCHE_INPUT_IDS=cl100k needs CONCHE_OPENAI_VOCABULARY"),
        ({("tls_cert",): "cert.pem"}, r"CONCHE_TLS_CERT and CONCHE_TLS_KEY go together"),
    ],
)
def test_values_out_of_bounds_or_against_each_other_are_refused(
    flags: dict[tuple[str, ...], str], said: str
) -> None:
    """The message names variable and flag, so that the fault can be found."""
    with pytest.raises(InvalidSettingsError, match=said):
        load_settings(flags)


@pytest.mark.parametrize("value", ["two", "2.5.1", "nan", "-1", "1000000"])
@pytest.mark.parametrize(
    ("path", "said"),
    [
        (("batching", "max_batch_tokens"), "must be auto or at least 16"),
        (("threads",), "must be auto or from 1 to 1024"),
        (("streams",), "must be auto or from 1 to 64"),
        (("metrics_port",), "must be none or from 0 to 65535"),
        (("recycle_seconds",), "must be none or from 0 to 3600"),
        (("loop_stall_seconds",), "must be none or from 1 to 86400"),
        (("startup_seconds",), "must be none or from 1 to 86400"),
    ],
)
def test_a_number_or_a_word_is_refused_in_one_way(path: tuple[str, ...], said: str, value: str) -> None:
    """Whether it is no number or one out of range: what may be written is the same."""
    if path == ("batching", "max_batch_tokens") and value == "1000000":
        return  # any number from 16 on may be written
    with pytest.raises(InvalidSettingsError) as caught:
        load_settings({path: value})
    assert str(caught.value).partition("): ")[2] == said


def test_every_fault_is_listed_at_once() -> None:
    """Not one a start."""
    with pytest.raises(InvalidSettingsError) as caught:
        load_settings({("port",): "-1", ("host",): "", ("batching", "max_batch_size"): "0"})
    assert len(str(caught.value).splitlines()) == 3


def test_settings_do_not_change_after_the_start() -> None:
    """What was checked stays what is used."""
    settings = Settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        settings.limits.max_inputs = 1  # type: ignore[misc]


def test_flags_and_variables_follow_from_the_field_names() -> None:
    """One rule, no list."""
    by_path = {option.path: option for option in options()}
    option = by_path["batching", "max_wait_ms"]
    assert (option.flag, option.variable) == ("--batching-max-wait-ms", "CONCHE_BATCHING__MAX_WAIT_MS")
    assert len({option.flag for option in by_path.values()}) == len(by_path)
    assert all(option.info.description for option in by_path.values())
    assert not unknown_variables({option.variable: "1" for option in by_path.values()})


def test_bundles_are_named_or_given_by_path(tmp_path: Path) -> None:
    """A name lies in the models folder; anything with a slash is a path."""
    settings = Settings(models_dir=tmp_path)
    assert settings.bundle_path("mine") == tmp_path / "mine"
    assert settings.bundle_path("./mine") == Path("mine")
    assert settings.bundle_path("elsewhere/mine") == Path("elsewhere/mine")
    assert settings.bundle_path("/elsewhere/mine") == Path("/elsewhere/mine")


def test_the_default_models_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`conche embed` works outside the checkout too; a folder that was set is taken as it stands."""
    monkeypatch.chdir(tmp_path)
    assert Settings().models_path() == REPOSITORY / "models"
    assert Settings(models_dir=Path("models")).models_path() == Path("models")
    (tmp_path / "models").mkdir()
    assert Settings().models_path() == Path("models")


def test_the_readmes_table_is_the_generated_one() -> None:
    """`conche settings --markdown` between the markers; a new setting cannot be left out."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- settings:begin -->\n(.*?)<!-- settings:end -->", readme, re.DOTALL)
    assert found, "no markers"
    assert found.group(1).strip() == markdown_table().strip()


def test_words_to_be_written_are_told_from_kinds_of_values() -> None:
    """`text` is one of the forms of the log, and any text is what a host may be."""
    values = {option.variable: option.values for option in options()}
    assert values["CONCHE_LOG_FORMAT"] == "`auto`, `json`, `text`"
    assert values["CONCHE_HOST"] == "text"
    assert values["CONCHE_ADMIN"] == "`true`, `false`"
    assert values["CONCHE_STREAMS"] == "`auto`, integer from 1 to 64"


@pytest.mark.parametrize(("value", "seconds"), [("none", None), ("0", 0.0), ("2.5", 2.5)])
def test_when_a_process_recycles_is_seconds_or_never(value: str, seconds: float | None) -> None:
    """One setting, so that nobody has to guess which of two counts."""
    assert load_settings({("recycle_seconds",): value}).recycle_after_s() == seconds


@pytest.mark.parametrize("name", ["loop_stall_seconds", "startup_seconds"])
def test_what_may_hang_has_a_limit_or_none(name: str) -> None:
    """Less than a second is less than a busy machine may take for a turn of the loop."""
    for value in ("1", "0.5e1", "86400", "none"):
        settings = load_settings({(name,): value})
        limit = settings.loop_stall_s() if name == "loop_stall_seconds" else settings.startup_s()
        assert limit == (None if value == "none" else float(value))
    for value in ("0.9", "86401", "nan", "inf", "never"):
        with pytest.raises(InvalidSettingsError, match=f"CONCHE_{name.upper()}"):
            load_settings({(name,): value})


@pytest.mark.parametrize("value", ["-1", "3601", "nan", "inf", "never"])
def test_other_times_to_recycle_are_refused(value: str) -> None:
    """A NaN compares false with everything, and so would never come."""
    with pytest.raises(InvalidSettingsError, match="CONCHE_RECYCLE_SECONDS"):
        load_settings({("recycle_seconds",): value})
