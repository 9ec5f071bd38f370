"""The command line, one file per command: reads, calls, prints."""
