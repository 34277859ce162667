#!/bin/sh
# Marks attempt $2 of run $1 as cancelled on this host, if the command with token $3 reserved it.
. ../plan/attempts.sh
cd "$runs/$1/reserved" && [ "$(readlink "$2")" = "$3" ] && : > "$2-cancelled-$(uname -n)"
