"""Bags of instances: one attention query per class, trained in two steps."""
