#!/bin/sh
# Lists the claims of all users on this host. Each value is a text that ends with NUL: the host's time,
# then the name, time, labels and state of each claim. At most the newest 256 claims of each user are
# listed, and nothing that they put into their folders makes this script wait, so that nobody can keep
# the others from listing claims.
. ./process_files.sh

# Prints file $1, in one go and without waiting: by now, it may be a link, a FIFO or endless.
claim_text() { dd if="$1" iflag=nofollow,nonblock bs=8192 count=1 2>/dev/null | tr -d '\0'; }

now=$(date +%s)
printf '%s\0' "$now"
LC_ALL=C; export LC_ALL # so that all folders of a user are adjacent
for folder in $(claims_folders | awk '++folders[$1] <= 8 { print $1 "/" $2 }'); do
  user=${folder%%/*}
  cd "${claims%/*}/${folder#*/}" 2>/dev/null || continue
  belongs_to . "$user" || continue # the folder has become a link
  [ "$user" = "$before" ] || left=256
  before=$user
  # names with other characters are not claims; what find has not listed by then is not read
  for entry in $(find . -maxdepth 1 -name 'ddpctl-*' -type f -printf '%T@/%f\n' 2>/dev/null | head -n 4096 |
    grep -xE '[0-9.]{1,32}/ddpctl-[[:alnum:]._-]+\.(waiting|created|running)' | sort -rn | head -n "$left"); do
    left=$((left - 1))
    time=${entry%%[./]*} file=${entry#*/}
    text=$(claim_text "$file")
    if [ -z "$text" ] && [ "${file##*.}" = created ]; then # its node has started since
      file=${file%.*}.running
      text=$(claim_text "$file")
    fi
    case $file in
      *.running)
        line=$(printf '%s\n' "$text" | as_process)
        if [ -n "$line" ]; then
          alive "$line" || { rm -f "$file" 2>/dev/null; continue; }
        else # the node is being started, or its start has failed
          [ $((now - time)) -lt 120 ] || continue
        fi
        ;;
    esac
    labels=${text#*"
"}
    [ "$labels" = "$text" ] || [ -z "$labels" ] || # otherwise, the claim has just been withdrawn
      printf '%s\0%s\0%s\0%s %s\0' "${file%.*}" "$time" "$labels" "${file##*.}" "$time"
  done
done
