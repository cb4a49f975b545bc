"""The commands that look at leases and free them."""
