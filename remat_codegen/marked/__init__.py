"""The second edition of generated files: the user's own model, marked in place, and a table."""
