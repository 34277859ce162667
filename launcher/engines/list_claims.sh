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
    case $file in
      *.running)
        line=$(process_in "$file")
        if [ -n "$line" ]; then
          alive "$line" || { rm -f "$file" 2>/dev/null; continue; }
        else # it is being started, or its start has failed
          [ -n "$(find "$file" -mmin -2)" ] || continue
        fi
        ;;
    esac
    printf 'claim\0%s\0%s\0' "$file" "$(stat -c %Y "$file")"
    read_file "$file" 65536 | tail -n +2 | tr -d '\0'
    printf '\0'
  done
done
printf 'clock\0%s\0' "$(date +%s)"
