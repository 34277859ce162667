#!/bin/sh
# Trains on the three hosts; the exit code is the run's, or 1 when nothing was learnt.
set -eu
ddpctl launch hosts.yaml --name box
ddpctl fetch --to results -q
python3 - <<'CHECK'
import json, sys
lines = [json.loads(line) for line in open("results/output/metrics.jsonl")]
last = [line for line in lines if line["kind"] == "eval"][-1]
print(f"{last['top1']:.1%} of {last['n']} test images")
sys.exit(last["n"] != 10_000 or last["top1"] < 0.7)
CHECK
