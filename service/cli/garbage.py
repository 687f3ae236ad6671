"""When Python looks for garbage in cycles, which it does in the event loop while everybody waits.

A start makes 100,000 objects and more, nearly all of which stay: to look for garbage among them takes a tenth
of the start, and afterwards stopped the event loop for 0.1 s every 2,000 requests. And requests in work hold
some thousand objects more than there were before, which Python by itself takes for a reason to look, once a
request. So what a request leaves behind must not be in cycles (`tests.service.test_app` tries). Figures:
bench/README.md.
"""

import gc
from typing import Final

# Net new objects before the youngest are looked at; how many such looks before one at the older, and at all.
_STARTING: Final = (50_000, 20, 100)
_AT_WORK: Final = (10_000, 20, 20)


def expect_to_keep() -> None:
    """Look seldom, for the time of a start."""
    gc.set_threshold(*_STARTING)


def keep_what_is_there() -> None:
    """Look among what is made from now on.

    What is there is freed once nobody refers to it, as ever, unless it is in a cycle: then never.
    """
    gc.freeze()
    gc.set_threshold(*_AT_WORK)
