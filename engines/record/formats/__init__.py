"""Libraries in the formats of other programs: one module a format, each writes it and reads it."""
