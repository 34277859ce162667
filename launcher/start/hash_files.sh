#!/bin/sh
# Prints the sha256 of each file, sorted by path. $1: run folder, $2: a folder in it.
# stdin: paths of files and folders, separated by NUL
cd "$1/$2" && xargs -0 -r -I@ find ./@ -type f -print0 | sort -z | xargs -0 -r sha256sum -z
