"""`ddpctl sanity`: collectives checked and measured in the user's own image, apart from any training."""
