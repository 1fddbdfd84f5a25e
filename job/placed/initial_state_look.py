"""Looks, where ranks will run, whether they could read the file that their job begins from.

`python -m placewire.job.placed.initial_state_look` reads a StateSpec from standard input and prints
an Answer. It opens the file as ranks do, and reads no tensor. Whether the file is of the job's
model, ranks find out: only they have the names of all its tensors.
"""

from __future__ import annotations

import sys

from placewire.job.contract.look import Answer, print_answer, problem_of
from placewire.job.contract.specification import StateSpec
from placewire.job.errors import JobError
from placewire.job.placed.initial_state_file import opened_initial_state

# A folder that a dead server exports answers nobody. What torch saved takes torch, which a disk may
# take long to bring; a large model has hundreds of files.
_SECONDS = 30.0


def answer_to(asked: StateSpec) -> Answer:
    try:
        with opened_initial_state(asked):
            pass
    except JobError as error:
        return Answer(problem=problem_of(error.what, error.remedy))
    return Answer()


def main() -> None:
    asked = StateSpec.model_validate_json(sys.stdin.read())
    print_answer(lambda: answer_to(asked), asked.file, _SECONDS)


if __name__ == "__main__":
    main()
