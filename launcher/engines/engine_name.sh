#!/bin/sh
# Prints docker or podman. Fails if neither is installed.
. ./find_engine.sh
echo "$engine"
command -v "$engine" >/dev/null
