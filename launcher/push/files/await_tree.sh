#!/bin/sh
# Waits until this host, an NFS client, sees a tree that another host has published. Changing the
# folder makes the client refresh its cache. $1: datasets or workdirs, $2: digest, $3: token
cd "$HOME/.ddpctl/$1" || exit 1
for _ in 1 2 3 4 5 6 7 8 9 10; do
  mkdir ".$2.$3" && rmdir ".$2.$3"
  [ -d "$2" ] && exit 0
  sleep 1
done
exit 1
