#!/bin/sh
# Runs the probe's agent with the host's python3 or, if it cannot, with the one in the job's image.
# Arguments: PROGRAM NAME TOKEN [COMMAND...]. COMMAND runs python3 in the image.
program=$1 name=$2 token=$3; shift 3
for p in python3 /usr/libexec/platform-python; do
  "$p" -ISc "$program" "$name" "$token" && exit
done
[ $# -eq 0 ] || exec "$@" -ISc "$program" "$name" "$token"
