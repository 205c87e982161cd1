"""Table 1 of Attention Is All You Need, measured: what one layer of each kind costs as the input grows."""
