#!/bin/sh
# Marks attempt $2 of run $1 as cancelled on this host, if the command with token $3 reserved it, or any
# command if $3 is "".
. ../plan/attempts.sh
cd "$runs/$1/reserved" && owner=$(readlink "$2") && [ "${3:-$owner}" = "$owner" ] && : > "$2-cancelled-$(uname -n)"
