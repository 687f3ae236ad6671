"""Conche beside others that do the same work, on one machine in one run; ``bench/compare.py`` runs it."""
