"""The terminal screen: a client of a run's process, drawn with Textual.

What it shows is computed by pure functions from the one folded state; what is pressed becomes a
request to the run (`studio.session.session.Session`).
"""
