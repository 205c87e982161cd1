"""Text from a trained run, written as it comes."""

from collections.abc import Callable

import torch
from transformers.generation.streamers import BaseStreamer

from lab import LabError
from lab.config import spec_of
from lab.evaluate import trained_model
from lab.model import LabModel, swap
from lab.progress import quiet
from lab.seq2seq.settings import Translation
from lab.settings import Run
from lab.tokenizer import Tokenizer, tokenizer_of
from positional import SchemeError
from positional.build import Spec, name_of


def generate(
    run: Run,
    prompt: str,
    write: Callable[[str], object],
    *,
    tokens: int,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
    scheme: str | None = None,
) -> None:
    """Write the prompt, then up to `tokens` more tokens as they are drawn, up to where the model ends the text.

    temperature: logits are divided by it; 0: always the likeliest token.   top_k: draw among so many likeliest.
    scheme: an encoding to put into the model, as in `spec_of`.
    Raises LabError for a run that is not trained, a prompt that is empty or too long, a scheme that needs training.
    """
    if isinstance(run, Translation):
        raise LabError(f"{run.path} is an encoder–decoder: `lab translate {run.path} TEXT`", code=2)
    quiet()
    torch.set_flush_denormal(True)  # weights of far keys underflow; on a CPU each would cost a hundred normal ones
    model = trained_model(run).to("cuda" if torch.cuda.is_available() else "cpu")
    if scheme is not None:
        put_in(model, spec_of(scheme))
    tokenizer = tokenizer_of(run.data.tokenizer)
    ids = torch.tensor(tokenizer.encode([prompt])[0].tolist(), dtype=torch.int64, device=model.device)[None]  # (1, T)
    tokens = room_for(model, ids.shape[1], tokens)
    drawn = {"do_sample": True, "temperature": float(temperature), "top_k": top_k or 0, "top_p": 1.0}
    write(prompt)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            streamer=Stream(tokenizer, write),
            max_new_tokens=tokens,
            use_cache=True,
            pad_token_id=tokenizer.eos,
            eos_token_id=tokenizer.eos,
            **(drawn if temperature else {"do_sample": False}),
        )


def put_in(model: LabModel, spec: Spec) -> None:
    """Swap an encoding in. Raises LabError where it cannot be built, or has weights that nothing has trained."""
    try:
        untrained = swap(model, spec)
    except SchemeError as error:
        raise LabError(f"--scheme: {error}", code=2) from None
    if untrained:
        raise LabError(
            f"--scheme: {name_of(spec)} has weights that this run never trained: {', '.join(untrained)}. "
            "`lab train` a run of its own with it",
            code=2,
        )


def room_for(model: LabModel, prompt: int, tokens: int) -> int:
    """How many tokens can follow a prompt of so many: those asked for, or fewer where the encoding ends before."""
    if not prompt:
        raise LabError('the prompt is empty: write what the text begins with, --prompt "def "', code=2)
    limit = model.scheme.limit
    if limit is None:
        return tokens
    if prompt > limit:
        raise LabError(
            f"the prompt has {prompt} tokens and {name_of(model.model.spec)} takes at most {limit}: shorten it, "
            "or put another encoding in with --scheme",
            code=2,
        )
    return min(tokens, limit - prompt + 1)  # the last one is not read


class Stream(BaseStreamer):
    """What `model.generate` hands each token to: writes text once no later token can change it."""

    def __init__(self, tokenizer: Tokenizer, write: Callable[[str], object]):
        self.tokenizer, self.write = tokenizer, write
        self.ids: list[int] | None = None  # None: the prompt has yet to come
        self.context = self.written = 0  # where the ids written last begin, and where they end

    def put(self, value: torch.Tensor) -> None:
        """(1, T) prompt at first, then each (1,) token."""
        if self.ids is None:
            self.ids = []
            return
        self.ids += [number for number in value.flatten().tolist() if number != self.tokenizer.eos]
        text = self.new_text()
        if text and not text.endswith("\N{REPLACEMENT CHARACTER}"):  # it may be half a character
            self.write(text)
            self.context, self.written = self.written, len(self.ids)

    def end(self) -> None:
        self.write(self.new_text())

    def new_text(self) -> str:
        """Text of the ids that are not written yet. Decoded after those before them, on which blanks may depend."""
        before = self.tokenizer.decode(self.ids[self.context : self.written])
        return self.tokenizer.decode(self.ids[self.context :])[len(before) :]
