#!/bin/sh
# Runs the probe's agent with the host's python3, or else with the one in the job's image.
# Arguments: PROGRAM NAME TOKEN [COMMAND...]. COMMAND runs python3 in the image.
program=$1 name=$2 token=$3; shift 3
for p in python3 /usr/libexec/platform-python; do
  if "$p" -ISc 'import socket, threading' 2>/dev/null; then
    exec "$p" -ISc "$program" "$name" "$token"
  fi
done
[ $# -eq 0 ] || exec "$@" -ISc "$program" "$name" "$token"
