"""Tests of what a change is worth."""
