#!/bin/sh
# Runs this host's docker or podman with all arguments.
. ./find_engine.sh
exec "$engine" "$@"
