"""The command line: one module for each group of verbs. Nothing heavy is imported before a verb has read its options."""
