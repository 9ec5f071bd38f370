"""The report and other pages, on the terminal and as HTML."""
