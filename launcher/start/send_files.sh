#!/bin/sh
# Prints the content of files, one after another. $1: run folder. stdin: paths in its checkpoints,
# separated by NUL
cd "$1/checkpoints" && xargs -0 -r cat --
