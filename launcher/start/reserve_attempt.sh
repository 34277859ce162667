#!/bin/sh
# Creates a folder for attempt $2 of run $1; of several commands, only the first succeeds. Exits
# with 17 if the folder exists.
. ../plan/attempts.sh
umask 077
mkdir -p "$runs/$1/reserved" && cd "$runs/$1/reserved" || exit 1
mkdir "$2" 2>/dev/null && exit 0
[ -d "$2" ] && exit 17
mkdir "$2"
