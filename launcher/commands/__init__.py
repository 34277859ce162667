"""One module per command. Each parses the arguments, does the work and returns the exit code."""
