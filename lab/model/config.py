"""The model's sizes and encoding, as transformers keeps them, and which of them do not fit together."""

import math
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from lab import LabError
from lab.mixers import Kind, by_layer, windowed
from positional import Scheme, Shape, build


@strict
class LabConfig(PreTrainedConfig):
    """Sizes of a model and the description of its positional encoding. Lengths are in tokens."""

    model_type = "context-lab"
    attribute_map = {
        "hidden_size": "width",
        "num_hidden_layers": "layers",
        "num_attention_heads": "heads",
        "num_key_value_heads": "kv_heads",
        "intermediate_size": "hidden",
        "max_position_embeddings": "train_length",
    }

    vocab_size: int = 256
    width: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int | None = None  # None: as many as heads
    hidden: int | None = None  # inner width of the MLP. None: 8/3 of the width, up to a multiple of 32
    qk_norm: bool = False
    train_length: int = 128
    positional: str | dict | list = "rope"
    mixer: str | dict | list = "attention"  # of all layers, or a list that is repeated over them
    attention: str = "auto"
    norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    use_cache: bool = True  # for `generate`; a call of the model keeps nothing unless it is asked to
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs):
        self.kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        self.hidden = 32 * math.ceil(self.width * 8 / 3 / 32) if self.hidden is None else self.hidden
        super().__post_init__(**kwargs)

    @property
    def shape(self) -> Shape:
        """What the scheme is told of the model. Raises LabError where the sizes do not fit together."""
        if problems := misfits(self.width, self.heads, self.kv_heads):
            raise LabError("; ".join(problems))
        return Shape(self.width, self.heads, self.kv_heads, self.layers, self.train_length)

    @property
    def mixers(self) -> list[Kind]:
        """The mixer of each layer. Raises LabError where `mixer` names none."""
        return by_layer(self.mixer, self.layers)

    def built(self, spec: Any, trust: bool = True) -> Scheme:
        """An encoding in a model of these sizes. Raises SchemeError where it cannot be."""
        return windowed(build(spec, self.shape, trust=trust), self.mixers)


def misfits(width: int, heads: int, kv_heads: int | None) -> list[str]:
    """What is wrong with these sizes taken together."""
    problems = []
    if width % heads:
        problems.append(f"width {width} is not a multiple of heads {heads}: each head takes width / heads channels")
    if kv_heads is not None and heads % kv_heads:
        problems.append(
            f"heads {heads} is not a multiple of kv_heads {kv_heads}: each key head serves as many query heads"
        )
    return problems
