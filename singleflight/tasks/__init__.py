"""What becomes of a message, whatever framework delivers it."""
