#!/bin/sh
# Exits with 17 if `kill` has cancelled attempt $2 of run $1 on this host since it was reserved, and with 18
# if the run has no folder here, as after `clean`. The marks of other hosts with this home do not count: a
# stop that completes late there marks later attempts too. Unlike `clean`, a disk that fails leaves a link
# at ~/.ddpctl or takes the home with it. A host that has just booted may have a new disk.
. ../plan/attempts.sh
[ ! -e "$runs/$1/reserved/$2-cancelled-$(uname -n)" ] || exit 17
[ -e "$runs/$1" ] || [ -L "$HOME/.ddpctl" ] || [ ! -w "$HOME" ] || [ "$(cut -d. -f1 /proc/uptime)" -lt 600 ] || exit 18
