#!/bin/sh
# Prints "FOLDER KB" for each tree and draft, except those to keep, new ones and drafts in use.
# $1: minimum age in seconds; further arguments: digests to keep
cd "$HOME/.ddpctl" 2>/dev/null || exit 0
now=$(date +%s) least=$1 boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)
shift
for tree in datasets/* workdirs/* datasets/.[!.]* workdirs/.[!.]*; do
  [ -d "$tree" ] || continue
  case " $* " in *" ${tree##*/} "*) continue ;; esac
  age=$((now - $(stat -c %Y "$tree")))
  [ "$age" -lt "$least" ] && continue
  if [ -f "$tree/holder" ]; then
    read -r pid since _ < "$tree/holder"
    if [ "$since" = "$boot" ]; then
      kill -0 "$pid" 2>/dev/null && continue
    else  # its process is on another host with this home, or this host has restarted
      [ "$age" -lt 86400 ] && continue
    fi
  fi
  echo "$tree $(du -sk "$tree" | cut -f 1)"
done
