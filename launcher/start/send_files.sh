#!/bin/sh
# Prints a tar stream. $1: run folder. stdin: paths in its checkpoints, separated by NUL
cd "$1/checkpoints" && tar -cf - --null -T -
