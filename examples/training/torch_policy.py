"""The tiny model: a Llama of some twenty thousand random weights, made on the spot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from vocabulary import CHAT_TEMPLATE, END, IDS, PAD, WORDS


def tiny_model(seed: int) -> LlamaForCausalLM:
    """A model with random weights, the same for the same seed."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64,
            bos_token_id=None, eos_token_id=END, pad_token_id=PAD, initializer_range=0.1,
            tie_word_embeddings=False,
        )
    )  # fmt: skip


def tokenizer() -> PreTrainedTokenizerFast:
    """The words for transformers."""
    whole = Tokenizer(models.WordLevel(vocab=IDS, unk_token="<pad>"))
    whole.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=whole, eos_token="<end>", pad_token="<pad>", chat_template=CHAT_TEMPLATE
    )


class TorchPolicy:
    """The model as it is served, and as the loop trains it."""

    def __init__(self, seed: int, rate: float = 2e-3, model: LlamaForCausalLM | None = None):
        self.version = 0
        self.model = tiny_model(seed) if model is None else model
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=rate)

    @torch.no_grad()
    def log_probabilities(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Of each word, that it comes next."""
        logits = self.model(torch.tensor(rows)).logits[:, -1]
        return torch.log_softmax(logits.float(), -1).numpy()

    def of_sampled(self, segments: Sequence[dict]) -> tuple[torch.Tensor, ...]:
        """The log-probabilities of all tokens after the first one of each segment by the weights
        of now, those that came with them, and the mask of the sampled ones."""
        rows = [[*each["prompt_ids"].tolist(), *each["response_ids"].tolist()] for each in segments]
        width = max(map(len, rows))
        ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
        told, mask = torch.zeros(ids.shape), torch.zeros(ids.shape)
        for number, each in enumerate(segments):
            place = slice(len(each["prompt_ids"]), len(rows[number]))
            told[number, place] = torch.tensor(each["logprobs"].tolist())
            mask[number, place] = torch.tensor(each["response_mask"].tolist()).float()
        scores = torch.log_softmax(self.model(ids).logits[:, :-1].float(), -1)
        found = scores.gather(-1, ids[:, 1:, None])[..., 0]
        return found, told[:, 1:], mask[:, 1:]

    def learn(self, segments: Sequence[dict], advantages: Sequence[float]) -> float:
        """One step up the gradient.  The greatest difference between the log-probabilities
        that came with the segments and those of the weights that they came from."""
        found, told, mask = self.of_sampled(segments)
        loss = -(found * mask * torch.tensor(advantages)[:, None]).sum() / mask.sum()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self.version += 1
        return float(((found - told).abs() * mask).max().detach())
