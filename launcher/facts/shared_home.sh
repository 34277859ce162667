#!/bin/sh
# One step of finding the hosts that share a ~/.ddpctl. $1: the step. $2: a folder in ~/.ddpctl.
# write: creates the folder with this host's own file $3. list: prints the files in the folder.
# remove: removes the folder.
case $1 in
  write) umask 077; mkdir -p "$HOME/.ddpctl/$2" && : > "$HOME/.ddpctl/$2/$3" ;;
  list) ls "$HOME/.ddpctl/$2" ;;
  remove) rm -rf "$HOME/.ddpctl/$2"; rmdir "$HOME/.ddpctl" 2>/dev/null; true ;;
esac
