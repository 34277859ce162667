#!/bin/sh
# Prints rows that end in NUL about a run's files and flight-recorder dumps: `SIZE PATH` for each
# file, an empty row, `SHA256  PATH` for each file, then `- PATH` for each file and folder that this
# user may not read. $1: the run's folder; paths are relative to it. Skips incomplete files: their names
# start with a dot.
cd "$1" 2>/dev/null || exit 0
set -- checkpoints output nodes/*/attempt-*/flight-recorder
find "$@" -type f ! -name '.*' -printf '%s %p\0' 2>/dev/null
printf '\0'
find "$@" -type f ! -name '.*' -exec sha256sum -z {} + 2>/dev/null
find "$@" ! -type l ! -name '.*' \( ! -readable -o -type d ! -executable \) -printf '- %p\0' 2>/dev/null
