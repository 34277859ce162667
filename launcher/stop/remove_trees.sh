#!/bin/sh
# Removes trees and drafts of pushes, with their manifests, except those used or changed after $1
# (unix seconds). stdin: their names in ~/.ddpctl, one per line
cd "$HOME/.ddpctl" || exit 1
while read -r tree; do
  # Rename it first, so that no push mistakes a half-removed tree for a complete one.
  aside=${tree%/*}/.removed.$(printf %s "${tree##*/}" | tr . -)
  mv -T "$tree" "$aside" 2>/dev/null || continue # another command has removed it
  if [ "$(stat -c %Y "$aside")" -gt "$1" ] && mv -T "$aside" "$tree" 2>/dev/null; then continue; fi
  rm -rf "$aside" "manifests/${tree##*/}" || exit 1
done
