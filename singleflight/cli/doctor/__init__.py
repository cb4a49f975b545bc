"""The command ``doctor``: is this store, and this app's set-up, fit for leases."""
