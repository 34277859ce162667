"""What a host says about itself."""
