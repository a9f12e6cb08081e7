"""The text of an answer while its ids come: no half characters, and nothing of a stop string.

Whatever comes at once, one id or a whole accepted draft, the parts joined are the same text.
"""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
"""Text of ids. Of a run that ends within a character, the rest shows as U+FFFD."""

HALF = "\ufffd"

_LONGEST_HELD = 32
"""Ids after which text that still ends within a character is shown as it is: no character is that long."""


class AnswerText:
    """Reads one answer.

    Args:
        decode: How ids become text, such as `ChatTemplate.show`.
        prompt_ids: What the answer follows: some tokenizers drop the space that a text begins with.
        stop_strings: The answer ends where one of them is complete, and none of it is shown.
    """

    def __init__(self, decode: Decode, prompt_ids: Sequence[int] = (), stop_strings: Sequence[str] = ()):
        self._characters = _Characters(decode, prompt_ids)
        self._scanner = StopScanner(stop_strings)

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the answer."""
        return self._scanner.found

    def push(self, ids: Sequence[int]) -> str:
        """Take in the next ids. Returns text that will not change any more and is part of no stop string.

        After a stop string nothing comes.
        """
        return self._scanner.push(self._characters.push(ids))

    def finish(self) -> str:
        """What was held back and is text after all, at the end of the answer."""
        return self._scanner.push(self._characters.finish()) + self._scanner.finish()


class StopScanner:
    """Cuts a text at the first stop string that is complete; of several, at the one that began first."""

    def __init__(self, stop_strings: Sequence[str]):
        self.found: str | None = None
        self._stop_strings = tuple(stop_strings)
        self._held = ""

    def push(self, text: str) -> str:
        """Take in more text. Returns what cannot be part of a stop string."""
        if self.found is not None or not self._stop_strings:
            return "" if self.found is not None else text
        text = self._held + text
        complete = [
            (place + len(stop), place, stop) for stop in self._stop_strings if (place := text.find(stop)) >= 0
        ]
        if complete:
            _, place, self.found = min(complete)
            self._held = ""
            return text[:place]
        begun = self._begun(text)
        self._held = text[len(text) - begun :]
        return text[: len(text) - begun]

    def finish(self) -> str:
        """What was held back because it might have become a stop string."""
        held, self._held = self._held, ""
        return held

    def _begun(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = min(len(text), max(map(len, self._stop_strings)) - 1)
        ends = (
            length
            for length in range(longest, 0, -1)
            if any(stop.startswith(text[-length:]) for stop in self._stop_strings)
        )
        return next(ends, 0)


class _Characters:
    """Decodes ids in a window that slides over whole characters only."""

    def __init__(self, decode: Decode, prompt_ids: Sequence[int]):
        self._decode = decode
        self._window = list(prompt_ids[-1:])
        self._known = len(self._window)
        """Ids of the window whose text is out; they are the context of the rest."""

    def push(self, ids: Sequence[int]) -> str:
        self._window.extend(ids)
        text = self._decode(self._window)
        if text.endswith(HALF) and len(self._window) - self._known < _LONGEST_HELD:
            return ""
        return self._slide(text)

    def finish(self) -> str:
        return self._slide(self._decode(self._window)) if len(self._window) > self._known else ""

    def _slide(self, text: str) -> str:
        before = self._decode(self._window[: self._known])
        self._window = self._window[self._known :]
        self._known = len(self._window)
        return text[len(before) :]
