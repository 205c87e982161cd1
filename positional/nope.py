"""NoPE: no positions at all, the causal mask alone tells order (Haviv et al. 2022, arXiv:2203.16634)."""

from positional.base import Scheme


class NoPE(Scheme):
    """The protocol's defaults, under their name in the literature."""
