#!/bin/sh
# Creates and fills the folders of a node. $1: run folder, $2: control folder, $3: digest of the
# pushed code to copy or "", $4: the user id that job.user sets or "", $5: the cache folder or "",
# $6: digest of the dataset or "". stdin: a tar stream with the control files. Exits with 17 if the
# code or the dataset is missing.
set -e
run=$1 control=$2 code=${3:+$HOME/.ddpctl/workdirs/$3} uid=$4 cache=$5 data=${6:+$HOME/.ddpctl/datasets/$6}
for tree in ${code:+"$code"} ${data:+"$data"}; do # if missing, Docker would create an empty folder
  touch -c "$tree" # so that nothing prunes it before the node uses it
  [ -d "$tree" ] || exit 17
done
umask 077
mkdir -p "$control/ranks"
uname -n > "$control/host"
umask 022
mkdir -p "$run/checkpoints" "$run/output" ${code:+"$run/workspace"} ${cache:+"$cache"}
# Of the nodes that share this run folder, only the one that creates the marker copies the code. The
# marker's name contains the digest, because an attempt that had to wait for its GPUs may have newer
# code at its next try.
if [ -n "$code" ] && mkdir "$control/../../.workspace-${control##*/}-$3" 2>/dev/null; then
  # Not hard links: a run that writes to a file would change it for all runs. If the file system can
  # (XFS, Btrfs), a copy shares the pushed file's blocks until one of the two changes.
  cp -a --reflink=auto "$code/." "$run/workspace/" 2>/dev/null || cp -a "$code/." "$run/workspace/"
  chmod -R u+w "$run/workspace"
fi
tar -x -m -o -f - -C "$control"
: >> "$control/journal"
if [ "${uid:-0}" != 0 ] && [ "$uid" != "$(id -u)" ]; then
  chmod 0777 "$run/checkpoints" "$run/output" "$control" "$control/ranks"
  chmod 0666 "$control/journal"
  chmod 0644 "$control/spec.json" "$control/supervisor.pyz"
  if [ -d "$run/workspace" ]; then chmod -R a+rwX "$run/workspace"; fi
  if [ -n "$cache" ]; then chmod 0777 "$cache"; fi
fi
