"""``conche settings`` and the flags of ``conche serve``: the settings class, shown."""

from click.testing import CliRunner

from service.cli import main
from service.settings import markdown_table, options


def test_every_setting_has_a_flag_on_serve() -> None:
    """Generated, so none can be missing."""
    output = CliRunner().invoke(main, ["serve", "--help"]).output
    for option in options():
        assert option.flag in output
        assert option.variable in "".join(output.split())


def test_the_table_for_the_readme_is_printed() -> None:
    """Ready to be pasted between the markers."""
    assert CliRunner().invoke(main, ["settings", "--markdown"]).output == markdown_table()


def test_the_plain_list_names_variables_flags_and_defaults() -> None:
    """For a terminal."""
    output = CliRunner().invoke(main, ["settings"]).output
    for option in options():
        assert f"{option.variable}  {option.flag}" in output
