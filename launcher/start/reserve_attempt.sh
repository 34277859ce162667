#!/bin/sh
# Reserves attempt $2 of run $1 for the command with token $3. Exits with 17 if it is taken.
. ../plan/attempts.sh
umask 077
mkdir -p "$runs/$1/reserved" && cd "$runs/$1/reserved" || exit 1
ln -sT "$3" "$2" 2>/dev/null && exit 0 # a link, because a link never exists without its content
[ "$(readlink "$2")" != "$3" ] || exit 0 # reserved by this command on another host with this home
[ -e "$2" ] || [ -L "$2" ] && exit 17
ln -sT "$3" "$2"
