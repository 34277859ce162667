#!/bin/sh
# Marks the draft as in use, unpacks the tar stream on stdin into it, and publishes it as the tree.
# $1: the kind of tree (such as datasets), $2: digest, $3: token of this push,
# $4: digest of the earlier tree or none
umask 022
LC_ALL=C; export LC_ALL # the remedy depends on what tar prints
draft=.$2.$3
cd "$HOME/.ddpctl/$1/$draft" || exit 1
boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)
echo "$$ ${boot:-unknown} $4" > holder || exit 1
rm -f complete
tar -x -o -f - || exit
# tar does not notice if the stream ends between two files, so check for the last file.
[ -f complete ] || { echo 'the stream ended early' >&2; exit 1; }
cd .. || exit 1
sync -f . 2>/dev/null # otherwise, a power failure could leave empty files in a tree that counts as complete
mkdir -p ../manifests
[ -f "$draft/manifest.z" ] && mv -f "$draft/manifest.z" "../manifests/$2"
# Another push may make the same tree at the same time.
[ -d "$2" ] || mv -T "$draft/tree" "$2" || [ -d "$2" ] || exit 1
touch -c "$2"
rm -rf "$draft"
exit 0
