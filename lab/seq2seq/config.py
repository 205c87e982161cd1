"""Sizes and encodings of the encoder–decoder, as transformers keeps them; the defaults are the paper's base model."""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict

from lab import LabError
from lab.seq2seq.base import TranslatorConfig
from positional import Scheme, SchemeError, Shape, build
from positional.build import name_of


@strict
class Seq2SeqConfig(TranslatorConfig):
    """Sizes and encodings; the defaults are the paper's base model, its table 3. Lengths are in tokens."""

    model_type = "context-lab-seq2seq"
    attribute_map = {
        "hidden_size": "width",
        "num_hidden_layers": "decoder_layers",
        "num_attention_heads": "heads",
        "intermediate_size": "hidden",
        "max_position_embeddings": "train_length",
    }

    hidden: int = 2048  # between the two matrices of a feed-forward sub-layer
    heads: int = 8
    key_size: int | None = None  # channels a head of queries and keys. None: width / heads
    value_size: int | None = None  # channels a head of values. None: width / heads
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_positional: str | dict | list = "sinusoidal"
    decoder_positional: str | dict | list = "sinusoidal"
    norm: Literal["post", "pre"] = "post"  # LayerNorm after each residual sum, or before each sub-layer and at the end
    train_length: int = 256  # of a source and of a target
    attention: str = "auto"

    def __post_init__(self, **kwargs):
        if (self.key_size is None or self.value_size is None) and self.width % self.heads:
            raise LabError(f"width {self.width} is not a multiple of heads {self.heads}: set key_size and value_size")
        self.key_size = self.width // self.heads if self.key_size is None else self.key_size
        self.value_size = self.width // self.heads if self.value_size is None else self.value_size
        super().__post_init__(**kwargs)

    def shape(self, layers: int) -> Shape:
        """What the scheme of a side with so many layers is told."""
        return Shape(self.width, self.heads, self.heads, layers, self.train_length, self.key_size)

    def built(self, side: Literal["encoder", "decoder"], trust: bool = True) -> Scheme:
        """The scheme of a side. Raises SchemeError."""
        spec, layers = getattr(self, f"{side}_positional"), getattr(self, f"{side}_layers")
        return scheme_of(side, spec, self.shape(layers), trust)


def scheme_of(side: Literal["encoder", "decoder"], spec: Any, shape: Shape, trust: bool = True) -> Scheme:
    """An encoding on a side. Raises SchemeError where it cannot be built, or cannot look ahead in the encoder."""
    scheme = build(spec, shape, trust=trust)
    if side == "encoder" and scheme.causal_only:
        raise SchemeError(
            f"{name_of(spec)} cannot be the encoder's, where a token also sees those after it: "
            f"{scheme.causal_only}. Give it to the decoder alone"
        )
    return scheme
