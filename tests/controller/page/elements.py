"""What a page is made of, for tests."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "br"}


class Elements(HTMLParser):
    """All elements of a page, each with the text up to the next one; refuses one that is not
    closed, or closed in another's place."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if self.found:
            tag, attributes, text = self.found[-1]
            self.found[-1] = tag, attributes, text + data

    def of(self, tag: str, kind: str = "") -> list[tuple[dict[str, str | None], str]]:
        return [
            (attributes, text.strip())
            for name, attributes, text in self.found
            if name == tag and kind in ["", *(attributes.get("class") or "").split()]
        ]
