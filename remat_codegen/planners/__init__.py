"""Planners: graph + profile + budget -> schedule. They see nothing else of the program."""
