"""The masked language model: the decoder's blocks, read both ways (Devlin et al. 2019, arXiv:1810.04805)."""

# B batch · T tokens · C width · V vocabulary

from dataclasses import replace
from typing import Any

from huggingface_hub.dataclasses import strict
from torch import Tensor
from transformers import AutoConfig, AutoModelForMaskedLM
from transformers.modeling_outputs import BaseModelOutputWithPast, MaskedLMOutput

from lab import LabError
from lab.model import Decoder, LabConfig, LabModel
from lab.places import positions
from positional import Positions, Scheme, SchemeError
from positional.build import name_of


@strict
class MaskedConfig(LabConfig):
    """Sizes as of `LabConfig`, and the token that stands for a hidden one."""

    model_type = "context-lab-masked"

    use_cache: bool = False
    mask_token_id: int | None = None

    def built(self, spec: Any, trust: bool = True) -> Scheme:
        """Raises SchemeError also where an encoding cannot look ahead."""
        if readers := [kind.name for kind in self.mixers if not kind.attends]:
            raise SchemeError(f"mixer {readers[0]} reads from first to last: a masked language model's is attention")
        scheme = super().built(spec, trust)
        if scheme.causal_only:
            raise SchemeError(
                f"{name_of(spec)} cannot be a masked language model's, where a token also sees those after it: "
                f"{scheme.causal_only}"
            )
        return scheme


class Encoder(Decoder):
    """Token ids -> hidden states, each of which has seen all tokens of its segment."""

    def forward(self, input_ids: Tensor, pos: Positions | None = None, **_: Any) -> BaseModelOutputWithPast:
        pos = Positions.first(input_ids.shape[1], device=input_ids.device) if pos is None else pos
        return super().forward(input_ids, replace(pos, causal=False))


class LabMaskedModel(LabModel):
    """A masked language model; save_pretrained, from_pretrained and the Auto classes work as for any other."""

    config_class = MaskedConfig
    body = Encoder

    @classmethod
    def can_generate(cls) -> bool:
        return False

    def generate(self, *args, **options):
        raise LabError("a masked language model tells hidden tokens from those around them, and goes on from nothing")

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        segments: Tensor | None = None,
        labels: Tensor | None = None,
        shift_labels: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **_: Any,
    ) -> MaskedLMOutput:
        """Logits of what stands at each place, (B, T, V), or with labels the mean loss alone.

        input_ids: (B, T), with `config.mask_token_id` where tokens are hidden.   attention_mask: (B, T), 0 for padding.
        position_ids: (B, T), default 0 … T-1.
        segments: (B, T), numbers of packed documents or the like: a token sees only tokens of its own number.
        labels: (B, T), the token that each place is to tell, itself and not the next; -100 for none.
        shift_labels: the same, by the name that the training loop has for it.
        num_items_in_batch: what to divide the loss by.
        """
        pos = positions(input_ids, attention_mask, position_ids, segments)
        hidden = self.model(input_ids, pos).last_hidden_state  # (B, T, C)
        labels = shift_labels if labels is None else labels
        if labels is None:
            return MaskedLMOutput(logits=self.head(hidden))
        told = labels != -100  # most are not, and need no logits
        total, count = self.loss_sum(hidden[told], labels[told])
        return MaskedLMOutput(loss=total / (count if num_items_in_batch is None else num_items_in_batch))


AutoConfig.register(MaskedConfig.model_type, MaskedConfig)
AutoModelForMaskedLM.register(MaskedConfig, LabMaskedModel)
