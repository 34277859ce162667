#!/bin/sh
# Removes trees and drafts of pushes, and their manifests, but none that was used or changed after $1 (unix
# seconds). stdin: their names in ~/.ddpctl, a line each
cd "$HOME/.ddpctl" || exit 1
while read -r tree; do
  # No push may take half a tree for the whole.
  aside=${tree%/*}/.removed.$(printf %s "${tree##*/}" | tr . -)
  mv -T "$tree" "$aside" 2>/dev/null || continue # another command has removed it
  if [ "$(stat -c %Y "$aside")" -gt "$1" ] && mv -T "$aside" "$tree" 2>/dev/null; then continue; fi
  rm -rf "$aside" "manifests/${tree##*/}" || exit 1
done
