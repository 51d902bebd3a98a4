"""What the user sees: progress, tables, pictures."""
