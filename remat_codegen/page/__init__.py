"""One page about a generated file: what is shown, as plain data, and how it is drawn."""
