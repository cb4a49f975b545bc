"""What tests need around the product: servers as child processes, and a network that can fail."""
