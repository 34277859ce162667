#!/bin/sh
# Prints rows that end in NUL about a run's files and flight-recorder dumps. $1: the run's folder; paths
# are relative to it. $2: `sizes`, for `SIZE PATH` for each file, or `hashes`, for `SHA256  PATH` for each
# file, then `- PATH` for each file and folder that this user may not read, and `> PATH//TARGET` for each
# symbolic link. Skips incomplete files: their names start with a dot. Empty rows show that it is still
# reading.
. ../ssh/report_reads.sh
cd "$1" 2>/dev/null || exit 0
what=$2
set -- checkpoints output nodes/*/attempt-*/flight-recorder
if [ "$what" = sizes ]; then
  find "$@" -type f ! -name '.*' -printf '%s %p\0' 2>/dev/null
else
  { # sorted, so that all hashes come after the empty rows
    find "$@" -type f ! -name '.*' -exec sh -c "$report_reads" sha256sum -z {} + 2>/dev/null 3>&4 4>&- | sort -z
  } 4>&1
  find "$@" ! -name '.*' \( -type l -printf '> %p//%l\0' \
    -o \( -type f -o -type d \) \( ! -readable -o -type d ! -executable \) -printf '- %p\0' \
    -o -printf '\0' \) 2>/dev/null
fi
