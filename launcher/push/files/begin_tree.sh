#!/bin/sh
# The first step of pushing a tree. Prints `present` if the host has the tree. Otherwise prints
# `resume BASE FILES` if an interrupted push has left a draft, which this push takes over; `free KB`
# for the free disk space; and `earlier DIGEST` for each earlier tree, newest first.
# $1: the kind of tree (such as datasets), $2: digest, $3: token of this push
LC_ALL=C; export LC_ALL # the remedy depends on what mkdir prints
mkdir -p -m 700 "$HOME/.ddpctl"; umask 022
mkdir -p "$HOME/.ddpctl/$1" && cd "$HOME/.ddpctl/$1" || exit 1
# Changing the folder makes an NFS client see the trees that other hosts have published in it.
mkdir ".$2.$3" 2>/dev/null; rm -rf ".$2.$3"
[ -d "$2" ] && { echo present; exit 0; }
boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)
for draft in ".$2".*; do
  [ -f "$draft/holder" ] || continue
  read -r pid since base < "$draft/holder"
  [ "$since" = "${boot:-unknown}" ] || continue
  kill -0 "$pid" 2>/dev/null && continue
  mv "$draft" ".$2.$3" 2>/dev/null || continue
  # A killed GNU tar leaves unreadable files in place of links that lead up: they do not count.
  echo "resume $base $(find ".$2.$3/tree" -type f -perm -400 -print0 | tr -dc '\000' | wc -c)"
  break
done
# counted from the percentage, because the name of a disk may contain spaces
df -Pk . | awk 'NR == 2 { for (i = 5; i <= NF; i++) if ($i ~ /^([0-9]+%|-)$/) { print "free " $(i - 1); exit } }'
# shellcheck disable=SC2045 # digests
for name in $(ls -t); do [ -d "$name" ] && echo "earlier $name"; done
exit 0
