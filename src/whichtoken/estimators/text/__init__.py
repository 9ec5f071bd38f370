"""Texts: attention on token counts, with exact reasons."""
