"""Reads of a PDF as Chromium writes it what tests of print ask: its pages, tables and colours."""

from __future__ import annotations

import re
import zlib
from functools import cached_property


class Printed:
    """Chromium writes the structure that screen readers use in plain words, and what is drawn in
    compressed streams."""

    def __init__(self, pdf: bytes) -> None:
        self._pdf = pdf
        found = re.findall(rb"^(\d+) 0 obj\n(.*?)(?=^endobj|^stream)", pdf, re.M | re.S)
        self._objects = {int(number): text.decode("latin-1") for number, text in found}

    @property
    def sizes(self) -> list[tuple[float, float]]:
        """Of each page, in inches."""
        boxes = re.findall(r"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", "".join(self._objects.values()))
        return [(float(width) / 72, float(height) / 72) for width, height in boxes]

    def pages_of(self, tag: str) -> list[set[int]]:
        """Of each element of this tag, as Table or TR, the pages that have something of it."""
        return [
            self._pages(number)
            for number, text in self._objects.items()
            if "/Type /StructElem" in text and re.search(rf"/S /{tag}\s", text)
        ]

    def _pages(self, number: int) -> set[int]:
        own = {int(page) for page in re.findall(r"/Pg (\d+) 0 R", self._objects[number])}
        return own.union(*map(self._pages, self._children.get(number, ())))

    @cached_property
    def _children(self) -> dict[int, list[int]]:
        children: dict[int, list[int]] = {}
        for number, text in self._objects.items():
            if "/Type /StructElem" in text and (parent := re.search(r"/P (\d+) 0 R", text)):
                children.setdefault(int(parent[1]), []).append(number)
        return children

    def fills_with(self, colour: str) -> bool:
        """colour: as CSS computes it, `rgb(1, 2, 3)`."""
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)]
        word = " ".join(f"{part:.4f}".strip("0") if part else "0" for part in parts)
        return f"{word} rg\n".encode() in self._drawn

    @cached_property
    def _drawn(self) -> bytes:
        streams = re.findall(rb"/Filter /FlateDecode.*?stream\n(.*?)\nendstream", self._pdf, re.S)
        return b"\n".join(zlib.decompress(stream) for stream in streams)
