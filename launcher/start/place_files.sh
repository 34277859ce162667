#!/bin/sh
# Moves received files into place, but never through a link. $1: run folder, $2: folder of received
# files, $3: folder for the replaced files, $4: the user id that job.user sets or "". stdin: `PATH` of
# each file and folder, and `PATH//TARGET` for each link to make, separated by NUL. The file `copied` in
# the run folder lists what was placed, as list_checkpoints.sh prints it: while it is unchanged, it is a
# mere copy, so it is not kept when it is replaced
cd "$1" && copied=$(pwd -P)/copied && cd checkpoints || exit 1
if [ "${4:-0}" != 0 ] && [ "$4" != "$(id -u)" ]; then chmod -R a+rwX "$2"; fi
# shellcheck disable=SC2016 # the inner shell expands them
xargs -0 -r -n 1 sh -c '
  set -e
  here=$(pwd -P)
  make() {
    [ "$(readlink -m "$1")" = "$here/$1" ] || { echo "$1 is a link or below one" >&2; exit 1; }
    mkdir -p "$1"
  }
  path=${3%%//*}
  row() {
    find "./$path" -maxdepth 0 -type f -printf "%T@ %s %p\0" -o -type l -printf "> %p//%l\0" | sed -z "s# \./# #"
  }
  folder=$(dirname "./$path")
  folder=${folder#./}
  [ "$folder" = . ] || make "$folder"
  if row | grep -qzxFf "$2" 2>/dev/null; then
    rm "./$path"
  elif [ -e "./$path" ] || [ -L "./$path" ]; then
    make "$1"
    [ "$folder" = . ] || make "$1/$folder"
    mv -T "./$path" "$1/$path"
  fi
  if [ "$path" = "$3" ]; then
    mv -T "$0/$path" "./$path"
  else
    ln -sT -- "${3#"$path"//}" "./$path"
  fi
  row | tr "\0" "\n" >>"$2"' "$2" "$3" "$copied" || exit 1
rm -rf "$2"
