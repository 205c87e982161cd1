"""Sequence to sequence: the paper's encoder–decoder, the recurrent one before it, their data and what they write."""
