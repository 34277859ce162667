#!/bin/sh
# Moves received files into place, but never through a link. $1: run folder, $2: folder of received
# files, $3: folder for the replaced files, $4: the user id that job.user sets or "". stdin: `PATH` of
# each file and folder, and `PATH//TARGET` for each link to make, separated by NUL; after `=` if the host
# has only a copy there, which is not kept, else after `+`. The file `copied` in the run folder lists what
# was placed, as list_checkpoints.sh prints it, and what was there when the node got another rank
cd "$1" && copied=$(pwd -P)/copied && cd checkpoints || exit 1
if [ "${4:-0}" != 0 ] && [ "$4" != "$(id -u)" ]; then chmod -R a+rwX "$2" && umask 0; fi
items=$(mktemp) && trap 'rm -f "$items"' EXIT && cat > "$items" || exit 1
# listed first, so that after an interruption no copy counts as a file that the ranks wrote
find "$2" -type f -printf '%T@ %s %P\0' >> "$copied" || exit 1
LC_ALL=C sed -zn '\#//#s/^./0 0 /p' "$items" >> "$copied" || exit 1
# shellcheck disable=SC2016 # the inner shell expands them
xargs -0 -r sh -c '
  set -e
  here=$(pwd -P) aside=$1 made=.
  shift
  make() {
    [ "$(readlink -m -- "$1")" = "$here/$1" ] || { echo "$1 is a link or below one" >&2; exit 1; }
    mkdir -p -- "$1"
  }
  for item; do
    path=${item#?}
    path=${path%%//*}
    case $path in */*) folder=${path%/*} ;; *) folder=. ;; esac
    [ "$folder" = . ] || [ "$folder" = "$made" ] || make "$folder"
    made=$folder
    if [ "${item#=}" = "$item" ] && { [ -e "./$path" ] || [ -L "./$path" ]; }; then
      make "$aside"
      [ "$folder" = . ] || make "$aside/$folder"
      mv -T "./$path" "$aside/$path"
    fi
    if [ "$path" = "${item#?}" ]; then
      mv -T "$0/$path" "./$path"
    else
      ln -sfT -- "${item#*//}" "./$path"
    fi
  done' "$2" "$3" < "$items" || exit 1
rm -rf "$2"
