"""How a server that has started says so: a page for people, or a log line for machines."""

import logging
import sys
from collections.abc import Mapping
from typing import Any

import click

logger = logging.getLogger("service.cli.server")  # where its lines have always come from


def announce(said: Mapping[str, Any]) -> None:
    """Show what is said: ``page`` as it is, or the fields of ``summary``."""
    if "page" not in said:
        logger.info("ready", extra=said["summary"])
        return
    # Standard output may have an encoding that knows no Chinese.
    encoding = sys.stdout.encoding or "utf-8"
    click.echo(said["page"].encode(encoding, errors="replace").decode(encoding))
