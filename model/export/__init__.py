"""Encoder to bundle: graph, storage, parity."""
