"""Readers of users' files."""
