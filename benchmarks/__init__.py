"""Benchmarks of singleflight beside what a user would pick instead; `python -m benchmarks --help`."""
