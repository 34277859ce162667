#!/bin/sh
# Lists the claims of all users on this host. Every value is a text that ends with NUL: for each claim
# `claim`, NAME.STATE, its time and its labels.
. ./process_files.sh
for folder in /tmp/ddpctl-claims-*; do
  user=${folder#/tmp/ddpctl-claims-}
  belongs_to "$folder" "${user%%.*}" || continue
  cd "$folder" 2>/dev/null || continue
  for file in *.waiting *.created *.running; do
    [ -f "$file" ] && [ ! -L "$file" ] || continue
    line=$(read_file "$file" 64 | head -n 1)
    case $file:$line in
      *.running:-) [ -n "$(find "$file" -mmin -2)" ] || continue ;; # its start has failed
      *.running:*) alive "$line" || { rm -f "$file" 2>/dev/null; continue; } ;;
    esac
    printf 'claim\0%s\0%s\0' "$file" "$(stat -c %Y "$file")"
    read_file "$file" 65536 | tail -n +2 | tr -d '\0'
    printf '\0'
  done
done
printf 'clock\0%s\0' "$(date +%s)"
