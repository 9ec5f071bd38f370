"""The command line: one file per command that reads the arguments, calls the library and prints."""
