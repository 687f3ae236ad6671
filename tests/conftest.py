"""One thread a computation: tests run beside each other, and their models are tiny."""

import os

# Before anything imports torch, and inherited by the processes that tests start. A thread pool for a handful of
# numbers spends its time waiting for the other thread, above all where something else has that core.
os.environ["OMP_NUM_THREADS"] = "1"
