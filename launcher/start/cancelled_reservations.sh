#!/bin/sh
# Prints the numbers of the attempts of run $1 that were cancelled after they had been reserved, on this
# host or on another host with the same home.
. ../plan/attempts.sh
cd "$runs/$1/reserved" 2>/dev/null || exit 0
for mark in *-cancelled-*; do echo "${mark%%-*}"; done
