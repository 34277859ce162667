"""`ddpctl sanity`: collectives checked and measured in the user's own image, without any training."""
