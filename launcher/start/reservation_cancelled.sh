#!/bin/sh
# Exits with 17 if `kill` has cancelled attempt $2 of run $1 on this host since it was reserved. The marks
# of other hosts with this home do not count: a stop that completes late there marks later attempts too.
# If $3 is set, the run had a folder here. If that is gone, `clean --kill` has removed it with the marks,
# unless this host has just booted: then it may have a new disk.
. ../plan/attempts.sh
[ -z "$3" ] || [ -e "$runs/$1" ] || [ "$(cut -d. -f1 /proc/uptime)" -lt 600 ] || exit 17
[ ! -e "$runs/$1/reserved/$2-cancelled-$(uname -n)" ] || exit 17
