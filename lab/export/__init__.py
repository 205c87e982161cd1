"""A model with another encoding as a checkpoint that others load, and is compared with what was measured."""
