"""The second edition of generated files: the user's own source, with what could be rebuilt marked in place, and a table."""
