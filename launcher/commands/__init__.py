"""One module per command: parse the arguments, call one function, print, return the exit code."""
