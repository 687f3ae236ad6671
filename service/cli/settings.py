"""``conche settings``: every setting, its variable, flag, default and meaning."""

import click

from service.settings import markdown_table, options


@click.command()
@click.option("--markdown", is_flag=True, help="As the table of the README.")
def settings(*, markdown: bool) -> None:
    """Show every setting."""
    if markdown:
        click.echo(markdown_table(), nl=False)
        return
    for option in options():
        click.echo(f"{option.variable}  {option.flag}")
        click.echo(f"    {option.info.description} Default: {option.default}. Values: {option.values}.")
