"""The embedded default: an offline, scripted stand-in for a model.

It is a simulation of an agent that learns, and says so wherever it cannot answer.
"""
