"""Tests of `studio compare`."""
