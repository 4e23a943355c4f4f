"""The embedded default: an offline, scripted stand-in for a model.

`reply.reply` speaks the chat-completions protocol; `transport` and `server` carry it.
It is a simulation of an agent that learns, and says so wherever it cannot answer.
"""
