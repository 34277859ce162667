#!/bin/sh
# Exits with 17 if `kill` has cancelled attempt $2 of run $1 on this host since it was reserved. The marks
# of other hosts with this home do not count: a stop that completes late there marks later attempts too.
# If $3 is set, the run had a folder here, and the lack of one means that `clean --kill` has removed it
# with the marks.
. ../plan/attempts.sh
[ -z "$3" ] || [ -e "$runs/$1" ] || exit 17
[ ! -e "$runs/$1/reserved/$2-cancelled-$(uname -n)" ] || exit 17
