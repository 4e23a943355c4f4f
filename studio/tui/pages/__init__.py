"""The pages of the screen, one module each."""
