"""`python -m reference`: writes docs/reference anew."""

from __future__ import annotations

from pathlib import Path

from reference.pages import pages

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"


def write(folder: Path) -> None:
    """Writes all pages into the folder, and removes every other file there."""
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for left in {file.name for file in folder.iterdir()} - set(made):
        (folder / left).unlink()
    for name, text in made.items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    write(FOLDER)
