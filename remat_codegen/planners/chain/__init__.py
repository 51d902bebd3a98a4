"""A graph as a chain of blocks: the options of each block (rk-Checkmate), and which of them each block takes (rk-Rotor)."""
