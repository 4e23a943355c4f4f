"""Widgets that draw lines of styled spans; none of them knows what the lines are about."""
