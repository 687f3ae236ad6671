"""Readers of labelled text: one module a format, one kind of answer."""
