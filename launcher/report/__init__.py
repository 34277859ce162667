"""One HTML page about a run, or two. `making` asks the hosts and writes the file; the rest is pure."""
