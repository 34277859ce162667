#!/bin/sh
# Prints the size of file $1, and the sha256 of that many bytes, because the file may be growing.
size=$(stat -L -c %s "$1") && echo "$size $(head -c "$size" "$1" | sha256sum)"
