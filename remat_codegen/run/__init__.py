"""From a request to its result: modules for what the user can ask for, and for the steps that these share. Sees all other
rooms."""
