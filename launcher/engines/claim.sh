#!/bin/sh
# Claims the GPUs in the labels on stdin. $1: NAME.STATE, $2: the node's control folder or ""
. ./process_files.sh
labels=$(whole_object) || exit 1
if [ -n "$2" ]; then printf '%s\n' "$labels" | replace "$2/labels.json" || exit 1; fi
folder=$(claims_folder) || exit 1
printf -- '-\n%s\n' "$labels" | replace "$folder/$1"
