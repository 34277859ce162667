"""One module a command: parse what typer hands over, call, show, return the exit code."""
