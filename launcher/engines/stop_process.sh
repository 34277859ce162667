#!/bin/sh
# Stops the supervisor of a node, and what a killed one has left. $1: control folder, $2: tenths of a
# second between SIGTERM and SIGKILL
. ./process_files.sh
line=$(process_in "$1/pid") tenths=$2
[ -n "$line" ] || exit 0 # never started
await_end() {
  while alive "$line" && [ "$tenths" -gt 0 ]; do
    sleep 0.1
    tenths=$((tenths - 1))
  done
  tenths=50
}
alive "$line" && kill -s TERM "${line%% *}"
await_end
kill_marked "$1" # the supervisor too: Apptainer's own process then ends by itself and unmounts the image
await_end
alive "$line" && kill -s KILL "${line%% *}"
await_end
