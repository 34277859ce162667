#!/bin/sh
# Removes trees and their manifests. $@: their folders in ~/.ddpctl
cd "$HOME/.ddpctl" || exit 1
for tree in "$@"; do
  rm -rf "$tree" "manifests/${tree##*/}" || exit 1
done
