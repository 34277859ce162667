"""The parts outside the training loop: other commands, other ways to start, canonical shards."""
