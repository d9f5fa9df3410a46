"""What can go wrong, said to a person: cause, object, remedy, exit code.

Every failure that a user can meet is an `AgentError`. The command line prints it on
stderr in one form and leaves with the exit code that the class declares.
"""

from __future__ import annotations

from typing import ClassVar


class AgentError(Exception):
    """A failure with its cause and its remedy.

    `what` names the object and the cause in one sentence; `remedy` says what the
    user can do about it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n  remedy: {self.remedy}" if self.remedy else self.what


class UsageError(AgentError):
    """The command line or the configuration file asks for something that cannot be."""

    exit_code = 2


class UnsupportedError(AgentError):
    """This host, kernel, driver or privilege level cannot do what was asked."""

    exit_code = 3


class ConflictError(AgentError):
    """Somebody else owns what we would have to take: never forced."""

    exit_code = 4


class PartialError(AgentError):
    """The work was done in part: some targets failed, or were left for the user to decide."""

    exit_code = 5
