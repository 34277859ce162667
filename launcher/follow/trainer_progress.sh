#!/bin/sh
# Prints the newest `start` entry of metrics.jsonl, which has the run's length, and the last lines.
# $1: the output folder
cd "$1" 2>/dev/null && [ -f metrics.jsonl ] || exit
grep -a total_steps metrics.jsonl | tail -n 1
tail -n 20 metrics.jsonl
