"""What a person decides on: at a living run's `control.sock`, or in a run without a process."""
