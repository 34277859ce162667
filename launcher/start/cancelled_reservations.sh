#!/bin/sh
# Prints the numbers of the attempts of run $1 that were cancelled on this host after they had been
# reserved. Hosts may share a home.
. ../plan/attempts.sh
cd "$runs/$1/reserved" 2>/dev/null || exit 0
for mark in *-cancelled-"$(uname -n)"; do echo "${mark%%-*}"; done
