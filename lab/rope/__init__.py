"""RoPE as transformers keeps it: in configurations, and in the modules of a live model."""
