#!/bin/sh
# Stops the supervisor of a node, and what a killed one has left. $1: control folder, $2: tenths of a
# second between SIGTERM and SIGKILL
. ./process_files.sh
line=$(process_in "$1/pid") tenths=$2
[ -n "$line" ] || exit 0 # never started
for number in TERM KILL; do
  alive "$line" || break
  kill -s "$number" "${line%% *}"
  while alive "$line" && [ "$tenths" -gt 0 ]; do
    sleep 0.1
    tenths=$((tenths - 1))
  done
  tenths=100
done
kill_marked "$1"
