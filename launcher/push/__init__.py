"""Send the image, dataset and code to hosts that lack them."""
