#!/bin/sh
# Moves received files into place, but never through a link. $1: run folder, $2: folder of received
# files, $3: folder for the replaced files, $4: the user id that job.user sets or "". stdin: paths
# of files and folders, separated by NUL
cd "$1/checkpoints" || exit 1
if [ "${4:-0}" != 0 ] && [ "$4" != "$(id -u)" ]; then chmod -R a+rwX "$2"; fi
# shellcheck disable=SC2016 # the inner shell expands them
xargs -0 -r -n 1 sh -c '
  set -e
  here=$(pwd -P)
  make() {
    [ "$(readlink -m "$1")" = "$here/$1" ] || { echo "$1 is a link or below one" >&2; exit 1; }
    mkdir -p "$1"
  }
  folder=$(dirname "./$2")
  folder=${folder#./}
  [ "$folder" = . ] || make "$folder"
  if [ -e "./$2" ] || [ -L "./$2" ]; then
    make "$1"
    [ "$folder" = . ] || make "$1/$folder"
    mv -T "./$2" "$1/$2"
  fi
  mv -T "$0/$2" "./$2"' "$2" "$3" || exit 1
rm -rf "$2"
