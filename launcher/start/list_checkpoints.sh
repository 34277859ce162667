#!/bin/sh
# Prints rows ending in NUL. $1: run folder. $2: `files`, for all files (`TIME SIZE PATH`) and links
# (`0 0 PATH//TARGET`), and again, after `= `, those that the file `copied` lists and that are unchanged;
# or `steps`, for the damaged steps after the newest complete step, then that complete step, whose files
# it hashes. Empty rows show that it is still reading. $2 may also be `mark`, which adds all files to
# `copied` and prints nothing
. ../ssh/report_reads.sh
export LC_ALL=C # names are bytes
cd "$1" 2>/dev/null && copied=$(pwd -P)/copied && cd checkpoints 2>/dev/null || exit 0
rows() {
  find . -mindepth 1 -name '.*' -prune -o -type f -printf '%T@ %s %P\0' -o -type l -printf '0 0 %P//%l\0'
}
if [ "$2" = mark ]; then
  rows >> "$copied"
  exit
elif [ "$2" = files ]; then
  rows
  [ ! -e "$copied" ] || { rows; sort -zu "$copied"; } | sort -z | uniq -zd | sed -z 's/^/= /'
  exit
fi
# Another host may have made the step: what it lists must be in the step, and not a device, which has no end.
lists_own_files() {
  ! grep -qavE '^[0-9a-f]{64} [ *][^/]' MANIFEST && ! grep -qaE '[ *]\.\.(/|$)|/\.\.(/|$)' MANIFEST
}
for step in $(ls -d ckpt/step-[0-9]* 2>/dev/null | sort -rV); do
  [ -f "$step/MANIFEST" ] || continue
  if (cd "$step" && lists_own_files && sh -c "$report_reads" sha256sum -c --status MANIFEST) 3>&1 >/dev/null 2>&1; then
    printf 'whole %s\0' "$step"
    break
  fi
  printf 'damaged %s\0' "$step"
done
