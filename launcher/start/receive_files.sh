#!/bin/sh
# Unpacks the tar stream on stdin. $1: run folder, $2: a new folder in its checkpoints
rm -rf "$1/checkpoints/$2" && mkdir -p "$1/checkpoints/$2" && tar -xf - -C "$1/checkpoints/$2"
