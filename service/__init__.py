"""Serves bundles over HTTP."""
