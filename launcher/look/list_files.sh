#!/bin/sh
# Prints a row for each complete file of a run: sha256, two spaces, path in the run's folder, NUL.
# The names of incomplete files start with a dot. $1: run folder
cd "$1" 2>/dev/null || exit 0
find checkpoints output -type f ! -name '.*' -exec sha256sum -z {} + 2>/dev/null
