#!/bin/sh
# Lists the claims of all users on this host. Each value is a text that ends with NUL: the host's time,
# then the name, time, labels and state of each claim. At most the newest 256 claims of each user are
# listed, so that nobody can make this script too slow for the others.
. ./process_files.sh
printf '%s\0' "$(date +%s)"
LC_ALL=C; export LC_ALL # so that all folders of a user are adjacent
for folder in /tmp/ddpctl-claims-*; do
  user=${folder#/tmp/ddpctl-claims-} user=${user%%.*}
  belongs_to "$folder" "$user" || continue
  cd "$folder" 2>/dev/null || continue
  belongs_to . "$user" || continue # the folder has become a link
  [ "$user" = "$before" ] || left=256
  before=$user
  # shellcheck disable=SC2010 # names with other characters are not claims
  for file in $(ls -t | grep -xE 'ddpctl-[[:alnum:]._-]+\.(waiting|created|running)' | head -n "$left"); do
    left=$((left - 1))
    [ -f "$file" ] && [ ! -L "$file" ] || continue
    case $file in
      *.running)
        line=$(process_in "$file")
        if [ -n "$line" ]; then
          alive "$line" || { rm -f "$file" 2>/dev/null; continue; }
        else # the node is being started, or its start has failed
          [ -n "$(find "$file" -mmin -2)" ] || continue
        fi
        ;;
    esac
    time=$(stat -c %Y "$file") labels=$(read_file "$file" 8192 | tail -n +2 | tr -d '\0')
    [ -z "$labels" ] || # otherwise, the claim has just been withdrawn
      printf '%s\0%s\0%s\0%s %s\0' "${file%.*}" "$time" "$labels" "${file##*.}" "$time"
  done
done
