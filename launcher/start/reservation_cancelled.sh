#!/bin/sh
# Exits with 17 if a kill on this host has cancelled attempt $2 of run $1 since it was reserved.
. ../plan/attempts.sh
[ ! -e "$runs/$1/reserved/$2-cancelled-$(uname -n)" ] || exit 17
