#!/bin/sh
# Runs the command of this host's engine, docker or podman, with all arguments.
. ./find_engine.sh
exec "$engine" "$@"
