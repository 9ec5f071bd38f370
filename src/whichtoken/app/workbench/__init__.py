"""A local web workbench with the same pages, figures and words as the report.

`whichtoken serve` starts it. Pages: claims, planner, your data, dynamics, inspect, jobs; each is a module with its `routes`.
The server itself computes nothing: workers and jobs call the library in processes of their own.
"""
