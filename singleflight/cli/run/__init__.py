"""The command ``run``: a lease around any command."""
