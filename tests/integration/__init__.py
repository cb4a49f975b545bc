"""Real workers, beats and brokers as processes, with their faults."""
