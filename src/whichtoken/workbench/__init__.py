"""The report come alive: a local web workbench on the same pages, figures and words.

`whichtoken serve` starts it. Rooms: claims, planner, your data, dynamics, inspect; each is a module with its `routes`.
Nothing here computes by itself: the rooms call the library, and long work runs as a job in a process of its own.
"""
