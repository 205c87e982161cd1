"""Masked language models: the decoder's blocks, read both ways."""
