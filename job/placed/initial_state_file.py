"""Opens the file that a training begins from, of whichever format, before its model is known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from placewire.job.contract.specification import StateSpec
from placewire.job.errors import JobError
from placewire.job.placed.tensor_header import TensorFileError
from placewire.job.placed.tensor_sources import TensorSource, opened


@contextmanager
def opened_initial_state(asked: StateSpec) -> Iterator[TensorSource]:
    """Raises JobError where the file cannot be read, then or within the block, and where it cannot
    be of any model."""
    try:
        with opened(Path(asked.file), asked.entry) as source:
            if not any(name.startswith(asked.prefix) for name in source.shapes):
                raise TensorFileError(
                    f"no name in it begins with the prefix {asked.prefix}"
                    if asked.prefix
                    else "it has no tensor"
                )
            yield source
    except (OSError, TensorFileError) as error:
        raise JobError(
            f"job.state.file {asked.file} cannot be loaded: {error}",
            "give a file of safetensors or of torch.save(model.state_dict(), FILE), or a folder of "
            "safetensors or of torch.distributed.checkpoint, under this path on every server",
        ) from error
