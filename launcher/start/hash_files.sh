#!/bin/sh
# Prints a row that ends in NUL for each regular file. $1: run folder, $2: a folder in the run folder,
# $3: `sizes`, for `SIZE TIME ./PATH`, or `hashes`, for `SHA256  ./PATH`. stdin: paths of files and
# folders, separated by NUL. Empty rows show that it is still reading
. ../ssh/report_reads.sh
cd "$1/$2" || exit 1
paths=$(mktemp) && hashes=$(mktemp) && trap 'rm -f "$paths" "$hashes"' EXIT || exit
sed -z 's#^#./#' | xargs -0 -r sh -c "$report_reads" sh -c 'exec find "$@" -type f -print0' sh 3>&1 > "$paths"
if [ "$3" = sizes ]; then
  xargs -0 -r sh -c 'find "$@" -maxdepth 0 -printf "%s %T@ %p\0"' sh < "$paths"
else
  xargs -0 -r sh -c "$report_reads" sha256sum -z < "$paths" 3>&1 > "$hashes" || exit
  cat "$hashes"
fi
