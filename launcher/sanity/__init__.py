"""`ddpctl sanity`: check and measure the collectives in the user's own image, without training."""
