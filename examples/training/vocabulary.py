"""The words of the tiny model, and how a conversation becomes tokens.

Each word is one token, and a text of the model is its words with spaces between them.  So
a conversation has the tokens that the model sampled, whatever it sampled, and the prompt
of a turn begins with all tokens of the turns before it.
"""

from __future__ import annotations

WORDS = [*"0123456789", "<user>", "<assistant>", "<end>", "<pad>"]
IDS = {word: number for number, word in enumerate(WORDS)}
END = IDS["<end>"]
PAD = IDS["<pad>"]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<' + message['role'] + '> ' + message['content'] + ' ' }}"
    "{% if message['role'] == 'assistant' %}{{ '<end> ' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
"""The rule of `prompt_ids` in the words of transformers, whose trainers want one."""


def prompt_ids(messages: list[dict[str, str]]) -> list[int]:
    """The tokens that the model reads before it answers."""
    ids: list[int] = []
    for message in messages:
        ids += [IDS[f"<{message['role']}>"], *(IDS[word] for word in message["content"].split())]
        if message["role"] == "assistant":
            ids.append(END)
    return [*ids, IDS["<assistant>"]]


def text_of(ids: list[int]) -> str:
    """What the model says with these tokens; the end of a turn is no part of it."""
    return " ".join(WORDS[each] for each in ids if each != END)
