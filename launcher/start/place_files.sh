#!/bin/sh
# Moves received files into place. $1: run folder, $2: received files, $3: where to keep the old
# ones, $4: "open" if others need access. stdin: paths of files and folders, separated by NUL
cd "$1/checkpoints" || exit 1
if [ "$4" = open ]; then chmod -R a+rwX "$2"; fi
# shellcheck disable=SC2016 # the inner shell expands them
xargs -0 -r -n 1 sh -c '
  set -e
  folder=$(dirname "./$2")
  if [ -e "./$2" ]; then mkdir -p "$1/$folder"; mv "./$2" "$1/$folder/"; fi
  mkdir -p "$folder"
  mv "$0/$2" "./$2"' "$2" "$3" || exit 1
rm -rf "$2"
