#!/bin/sh
# Makes the draft the tree. $1: datasets or workdirs, $2: digest, $3: token of this push
umask 022
cd "$HOME/.ddpctl/$1" || exit 1
mkdir -p ../manifests
[ -f ".$2.$3/manifest.z" ] && mv -f ".$2.$3/manifest.z" "../manifests/$2"
mv -T ".$2.$3/tree" "$2" || [ -d "$2" ] || exit 1
touch "$2"
rm -rf ".$2.$3"
exit 0
