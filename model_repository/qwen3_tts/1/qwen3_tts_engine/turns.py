"""Whose turn it is on a device that talker and codec share. No threads: the engine's lock guards it."""

from enum import Enum


class User(Enum):
    TALKER = "talker"
    CODEC = "codec"


class Turns:
    """One user at a time, and the other one next.

    Two processes on one GPU are given slices of its time, some milliseconds each: beside a talker that never pauses a
    codec call of 0.6 ms took 12 (measured on one H200).
    """

    def __init__(self, *, enabled: bool) -> None:
        """Without turns everyone may work at any time."""
        self.enabled = enabled
        self._holder: User | None = None
        self._next: User | None = None

    def may(self, user: User) -> bool:
        if not self.enabled or self._holder is user:
            return True
        return self._holder is None and self._next in (None, user)

    def take(self, user: User) -> None:
        self._holder, self._next = user, None

    def release(self, following: User) -> None:
        """Nobody works any more; `following` goes first, unless it declines."""
        self._holder, self._next = None, following

    def decline(self, user: User) -> None:
        """There is nothing to do for `user` after all."""
        self._holder = None if self._holder is user else self._holder
        self._next = None if self._next is user else self._next
