"""Sessions with a run: over its process's `control.sock`, or without a process."""
