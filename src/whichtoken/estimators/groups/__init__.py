"""Rows whose columns come in groups: which group matters."""
