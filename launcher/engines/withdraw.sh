#!/bin/sh
# Removes claim $1 unless its node has started; prints a line if it has. With `all` as $2, removes the
# claim in any case.
. ./process_files.sh
folder=$(claims_folder) || exit 1
rm -f "$folder/$1.waiting" "$folder/$1.created" # a start needs the latter file, so check only afterward
if [ "$2" = all ]; then rm -f "$folder/$1.running"; fi
[ ! -e "$folder/$1.running" ] || echo "its node has started"
