#!/bin/sh
# Removes trees of data and code, and their manifests. stdin: their names in ~/.ddpctl, a line each
cd "$HOME/.ddpctl" || exit 1
while read -r tree; do
  rm -rf "$tree" "manifests/${tree##*/}" || exit 1
done
