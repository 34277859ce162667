"""Records of runs: write them, read them, find a run, and rebuild a record from the hosts."""
