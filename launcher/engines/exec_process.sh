#!/bin/sh
# Runs the command line $2 with the environment and in the working directory of the node in control
# folder $1. On a terminal, the command also gets our TERM.
. ./enter_node.sh
pid=${line%% *}
python=$(readlink "/proc/$pid/exe")
folder=$("$python" -I -S -c 'import json, os, sys
with open(sys.argv[1]) as file:
    sys.stdout.buffer.write(os.fsencode(json.load(file)["cwd"] or ""))' "$1/spec.json")
cd "${folder:-/proc/$pid/cwd}" && exec 4< "/proc/$pid/environ" || exit 126
trap : INT QUIT # Ctrl-C is for the command only
"$python" -I -S -c "$enter" "$2" "${TERM:-dumb}"
exit "$?"
