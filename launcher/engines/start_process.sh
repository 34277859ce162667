#!/bin/sh
# Starts the supervisor of a node, which outlives this script and the connection. $1: control folder,
# $2: name of its claim, $3: working directory or "", $4: Python or conda:NAME, other arguments: of
# Python. stdin: its environment as JSON, which no list of processes shows
. ./process_files.sh
. ./find_python.sh
control=$1 name=$2 folder=$(claims_folder) || exit 1
python=$(find_python "$4") || exit 1
[ -z "$3" ] || cd "$3" || exit 1
shift 4
PATH=$(dirname "$python"):$PATH
export PATH
environment=$(cat)
mv "$folder/$name.created" "$folder/$name.running" || exit 17 # withdrawn
boot='import json, os, sys
os.environ.update(json.load(sys.stdin))
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.execv(sys.executable, [sys.executable] + sys.argv[1:])'
printf %s "$environment" | setsid "$python" -I -S -c "$boot" "$@" > /dev/null 2> "$control/supervisor.out" &
pid=$! began=$(start_of "$!")
printf '%s %s\n' "$pid" "${began:-0}" | replace "$control/pid"
{ cat "$control/pid"; tail -n +2 "$folder/$name.running"; } | replace "$folder/$name.running"
