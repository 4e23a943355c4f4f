"""Rehearsal with tools: problems that need the interpreter, and the protocol of calls."""
