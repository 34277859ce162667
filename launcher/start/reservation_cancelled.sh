#!/bin/sh
# Exits with 17 if `kill` has cancelled attempt $2 of run $1 on this host since it was reserved.
. ../plan/attempts.sh
[ ! -e "$runs/$1/reserved/$2-cancelled-$(uname -n)" ] || exit 17
