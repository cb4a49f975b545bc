"""Leases in this process: claimed, renewed in the background, waited for, given back."""
