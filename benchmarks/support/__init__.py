"""What all benchmarks share: servers, rounds, reports."""
