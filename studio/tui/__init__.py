"""The terminal screen: a client of a run's process, drawn with Textual.

Holds no decisions about practice. What it shows is computed by pure functions from the one
folded state (`studio.tui.header` and the `*_view` modules); what is pressed becomes a request
to the run (`studio.session.base.Session`).
"""
