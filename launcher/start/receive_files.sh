#!/bin/sh
# Unpacks the tar stream on stdin. $1: run folder, $2: the folder to create in its checkpoints
mkdir -p "$1/checkpoints" && cd "$1/checkpoints" && rm -rf "$2" && mkdir "$2" || exit 1
exec tar -x -o -f - -C "$2"
