#!/bin/sh
# Prints two rows for each regular file: first all rows `SIZE TIME ./PATH`, then an empty row, then all
# rows `SHA256  ./PATH`. Each row ends in NUL. $1: run folder, $2: a folder in the run folder. stdin:
# paths of files and folders, separated by NUL
cd "$1/$2" || exit 1
paths=$(mktemp) && trap 'rm -f "$paths"' EXIT
xargs -0 -r -I@ find ./@ -type f -print0 > "$paths"
xargs -0 -r sh -c 'find "$@" -maxdepth 0 -printf "%s %T@ %p\0"' sh < "$paths"
printf '\0'
xargs -0 -r sha256sum -z < "$paths"
